import java.util.*;
import java.util.concurrent.*;

/** How tenants log in, and how the stories of two of them are told at once. */
final class Tenants {
    record Login(String bootstrap, String key, String secret) {
        Properties properties() {
            Properties login = new Properties();
            login.put("bootstrap.servers", bootstrap);
            login.put("security.protocol", "SASL_PLAINTEXT");
            login.put("sasl.mechanism", "PLAIN");
            login.put("sasl.jaas.config", "org.apache.kafka.common.security.plain.PlainLoginModule required username=\""
                + key + "\" password=\"" + secret + "\";");
            return login;
        }
    }

    interface Story {
        String live(Login login, String topic, String group, String name) throws Exception;
    }

    /** Arguments: bootstrap, topic, group, then key and secret of each. One line for each, or why not. */
    static void both(String[] arguments, Story story) {
        ExecutorService both = Executors.newFixedThreadPool(2);
        List<Future<String>> said = new ArrayList<>();
        for (int tenant = 0; tenant < 2; tenant++) {
            Login login = new Login(arguments[0], arguments[3 + 2 * tenant], arguments[4 + 2 * tenant]);
            String name = "t" + tenant;
            said.add(both.submit(() -> story.live(login, arguments[1], arguments[2], name)));
        }
        int code = 0;
        for (Future<String> one : said) {
            try {
                System.out.println(one.get());
            } catch (Exception failure) {
                failure.printStackTrace();
                code = 1;
                break;
            }
        }
        System.exit(code); // whatever else still runs: what failed shall be heard of
    }
}
