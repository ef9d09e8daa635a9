package penstock.tier;

import java.io.EOFException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.DirectoryStream;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.NotDirectoryException;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.UUID;

/**
 * Objects as files below one directory, which all brokers see. An object is written to a temporary file, forced
 * to disk and linked to its name: link(2) fails where the name is taken, and never shows a partial file.
 */
final class FileStore implements ObjectStore {
    static final String UPLOADS = ".uploads";
    /** A temporary file this old belongs to a broker that died. */
    static final long UPLOAD_HOURS_MAX = 24;

    private final Path root;
    private final Path uploads;

    FileStore(Path root) throws IOException {
        this.root = root.toAbsolutePath().normalize();
        this.uploads = this.root.resolve(UPLOADS);
        Files.createDirectories(uploads);
        removeAbandonedUploads(Instant.now().minus(UPLOAD_HOURS_MAX, ChronoUnit.HOURS));
    }

    private void removeAbandonedUploads(Instant before) throws IOException {
        try (DirectoryStream<Path> files = Files.newDirectoryStream(uploads)) {
            for (Path file : files) {
                try {
                    if (Files.getLastModifiedTime(file).toInstant().isBefore(before)) {
                        Files.deleteIfExists(file);
                    }
                } catch (NoSuchFileException removed) {
                    continue; // by another broker
                }
            }
        }
    }

    @Override
    public Upload begin(String key) throws IOException {
        return new FileUpload(path(key), uploads.resolve(UUID.randomUUID().toString()));
    }

    @Override
    public boolean create(String key, byte[] content) throws IOException {
        try (Upload upload = begin(key)) {
            upload.write(content, 0, content.length);
            return upload.commit();
        }
    }

    @Override
    public byte[] read(String key, long start, int length) throws IOException {
        ByteBuffer bytes = ByteBuffer.allocate(length);
        try (FileChannel file = open(key)) {
            while (bytes.hasRemaining()) {
                if (file.read(bytes, start + bytes.position()) < 0) {
                    throw new EOFException(key + " ends before byte " + (start + length));
                }
            }
        }
        return bytes.array();
    }

    @Override
    public byte[] readAll(String key, int bytesMax) throws IOException {
        long size;
        try (FileChannel file = open(key)) {
            size = file.size();
        }
        if (size > bytesMax) {
            throw new IOException(key + " has " + size + " bytes, expected at most " + bytesMax);
        }
        return read(key, 0, (int) size);
    }

    private FileChannel open(String key) throws IOException {
        try {
            return FileChannel.open(path(key), StandardOpenOption.READ);
        } catch (NoSuchFileException missing) {
            throw new MissingObject(key);
        }
    }

    @Override
    public List<String> list(String prefix, int countMax) throws IOException {
        int cut = prefix.lastIndexOf('/') + 1;
        List<String> keys = new ArrayList<>();
        String names = prefix.substring(cut) + "*"; // keys contain no character that is special in a pattern
        try (DirectoryStream<Path> files = Files.newDirectoryStream(path(prefix.substring(0, cut)), names)) {
            for (Path file : files) {
                keys.add(prefix.substring(0, cut) + file.getFileName());
            }
        } catch (NoSuchFileException | NotDirectoryException none) {
            return List.of();
        }
        Collections.sort(keys);
        return keys.size() > countMax ? keys.subList(0, countMax) : keys;
    }

    @Override
    public void close() {
        // No file stays open between calls.
    }

    private Path path(String key) throws IOException {
        Path path = root.resolve(key).normalize();
        if (!path.startsWith(root)) {
            throw new IOException(key + " is outside of " + root);
        }
        return path;
    }

    private static final class FileUpload implements Upload {
        private final Path target;
        private final Path temporary;
        private final FileChannel file;

        FileUpload(Path target, Path temporary) throws IOException {
            this.target = target;
            this.temporary = temporary;
            this.file = FileChannel.open(temporary, StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE);
        }

        @Override
        public void write(byte[] bytes, int start, int length) throws IOException {
            ByteBuffer rest = ByteBuffer.wrap(bytes, start, length);
            while (rest.hasRemaining()) {
                file.write(rest);
            }
        }

        @Override
        public boolean commit() throws IOException {
            file.force(true);
            createDirectories(target.getParent());
            try {
                Files.createLink(target, temporary);
            } catch (FileAlreadyExistsException exists) {
                return false;
            }
            force(target.getParent());
            return true;
        }

        /** Creates missing directories, and forces the entry of each to disk. */
        private static void createDirectories(Path directory) throws IOException {
            if (Files.isDirectory(directory)) {
                return;
            }
            createDirectories(directory.getParent());
            Files.createDirectories(directory); // another broker may have been first
            force(directory.getParent());
        }

        private static void force(Path directory) throws IOException {
            try (FileChannel channel = FileChannel.open(directory, StandardOpenOption.READ)) {
                channel.force(true);
            }
        }

        @Override
        public void close() throws IOException {
            file.close();
            Files.deleteIfExists(temporary);
        }
    }
}
