package penstock.tier;

import java.io.Closeable;
import java.io.IOException;
import java.util.List;

/**
 * Where segments are stored. Objects are written once and whole: no method overwrites or deletes one, so the
 * broker's credentials need no right to do either.
 */
interface ObjectStore extends Closeable {
    /** Starts the upload of a large object, which does not exist before {@link Upload#commit()}. */
    Upload begin(String key) throws IOException;

    /** Creates a small object; false if there is one already, which stays as it is. */
    boolean create(String key, byte[] content) throws IOException;

    /** Exactly {@code length} bytes from {@code start}; {@link MissingObject} if there is no such object. */
    byte[] read(String key, long start, int length) throws IOException;

    /** A small object as a whole, at most {@code bytesMax}. */
    byte[] readAll(String key, int bytesMax) throws IOException;

    /** Keys that start with {@code prefix}, sorted, at most {@code countMax}. */
    List<String> list(String prefix, int countMax) throws IOException;

    @Override
    void close() throws IOException;

    /** An object on its way. {@code close} without {@code commit} leaves nothing behind. */
    interface Upload extends Closeable {
        void write(byte[] bytes, int start, int length) throws IOException;

        /** Makes the object visible; false if there is one already. */
        boolean commit() throws IOException;
    }

    /** There is no object of that name. */
    final class MissingObject extends IOException {
        private static final long serialVersionUID = 1;

        MissingObject(String key) {
            super("there is no object " + key);
        }
    }
}
