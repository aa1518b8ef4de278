import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** One line of the input. The grammar stands at RedissonPeer. */
record Command(
        String id, String thread, String kind, List<String> names, String operation, Map<String, String> arguments) {
    /** What a void method answers. */
    static final Object NOTHING = new Object();

    static Command parse(String line) {
        String[] words = line.split(" ");
        if (words.length < 5) {
            throw new IllegalArgumentException("not a command: " + line);
        }
        Map<String, String> arguments = new HashMap<>();
        for (String word : Arrays.asList(words).subList(5, words.length)) {
            int equals = word.indexOf('=');
            if (equals < 0) {
                throw new IllegalArgumentException("an argument is NAME=VALUE: " + line);
            }
            arguments.put(word.substring(0, equals), word.substring(equals + 1));
        }
        return new Command(words[0], words[1], words[2], List.of(words[3].split(",")), words[4], arguments);
    }

    /** The name, where there can be but one. */
    String name() {
        if (names.size() != 1) {
            throw new IllegalArgumentException(kind + " takes one name");
        }
        return names.get(0);
    }

    boolean has(String argument) {
        return arguments.containsKey(argument);
    }

    String text(String argument) {
        String value = arguments.get(argument);
        if (value == null) {
            throw new IllegalArgumentException(operation + " needs " + argument + "=");
        }
        return value;
    }

    long number(String argument) {
        return Long.parseLong(text(argument));
    }

    int count(String argument) {
        return Integer.parseInt(text(argument));
    }

    IllegalArgumentException unknown() {
        return new IllegalArgumentException(kind + " has no operation " + operation);
    }
}
