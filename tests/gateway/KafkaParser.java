import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.io.IOException;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.nio.ByteBuffer;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;

import org.apache.kafka.common.message.ApiMessageType;
import org.apache.kafka.common.message.RequestHeaderData;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.MessageUtil;
import org.apache.kafka.common.requests.RequestHeader;

/**
 * What Kafka reads in a request. Frames with their size on stdin; for each, on stdout, the same request in
 * canonical form: parsed, without the tagged fields that Kafka does not know, and serialized again. Size 0
 * if Kafka cannot read it, -1 if it can read but not write it.
 */
public class KafkaParser {
    private static final Map<Class<?>, List<Field>> FIELDS = new HashMap<>();

    public static void main(String[] arguments) throws Exception {
        DataInputStream in = new DataInputStream(new BufferedInputStream(System.in, 1 << 16));
        DataOutputStream out = new DataOutputStream(new BufferedOutputStream(System.out, 1 << 16));
        while (true) {
            int size;
            try {
                size = in.readInt();
            } catch (EOFException end) {
                return;
            }
            if (size < 0) { // the end of a batch
                out.flush();
                continue;
            }
            byte[] frame = new byte[size];
            in.readFully(frame);
            write(out, ByteBuffer.wrap(frame));
        }
    }

    private static void write(DataOutputStream out, ByteBuffer frame) throws IOException {
        RequestHeader header;
        ApiMessage body;
        try {
            header = RequestHeader.parse(frame);
            body = ApiMessageType.fromApiKey(header.apiKey().id).newRequest();
            body.read(new ByteBufferAccessor(frame), header.apiVersion());
        } catch (RuntimeException unreadable) {
            out.writeInt(0);
            return;
        }
        ByteBuffer start, rest;
        try {
            RequestHeaderData head = header.data();
            withoutUnknown(head);
            withoutUnknown(body);
            start = MessageUtil.toByteBufferAccessor(head, header.headerVersion()).buffer();
            rest = MessageUtil.toByteBufferAccessor(body, header.apiVersion()).buffer();
        } catch (RuntimeException unwritable) {
            out.writeInt(-1);
            return;
        }
        out.writeInt(start.remaining() + rest.remaining());
        out.write(start.array(), start.arrayOffset() + start.position(), start.remaining());
        out.write(rest.array(), rest.arrayOffset() + rest.position(), rest.remaining());
    }

    private static void withoutUnknown(Object value) {
        if (value instanceof Message message) {
            message.unknownTaggedFields().clear();
            for (Field field : FIELDS.computeIfAbsent(value.getClass(), KafkaParser::fields)) {
                try {
                    withoutUnknown(field.get(value));
                } catch (IllegalAccessException impossible) {
                    throw new AssertionError(impossible);
                }
            }
        } else if (value instanceof Collection<?> elements) {
            elements.forEach(KafkaParser::withoutUnknown);
        }
    }

    private static List<Field> fields(Class<?> type) {
        return Stream.of(type.getDeclaredFields())
            .filter(field -> !Modifier.isStatic(field.getModifiers()) && !field.getType().isPrimitive())
            .peek(field -> field.setAccessible(true))
            .toList();
    }
}
