import io.kroxylicious.proxy.KafkaProxy;
import io.kroxylicious.proxy.config.ConfigParser;
import io.kroxylicious.proxy.internal.config.Features;
import java.nio.file.*;

/** Kroxylicious without its distribution: the configuration file is the only argument. */
public class Launch {
    public static void main(String[] arguments) throws Exception {
        ConfigParser parser = new ConfigParser();
        String configuration = Files.readString(Path.of(arguments[0]));
        try (KafkaProxy proxy = new KafkaProxy(parser, parser.parseConfiguration(configuration), Features.defaultFeatures())) {
            proxy.startup().block();
        }
    }
}
