// Kafka's own client: the same command line and files as the other drivers; see with_python.py and record_files.py.
//
//     java -cp 'FOLDER/*' WithJava.java write SERVERS FILE COMPRESSION=TOPIC...
//     java -cp 'FOLDER/*' WithJava.java read SERVERS FOLDER COUNT TOPIC...
//     java -cp 'FOLDER/*' WithJava.java transact SERVERS TOPIC COUNT
//
// The last one makes transactions with the topic as transactional id, each of a record in every partition and an offset
// of the group that has the name of the topic, and aborts every third one.

import java.io.BufferedOutputStream;
import java.io.ByteArrayInputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public class WithJava {
    static final long DEADLINE_MS = 300_000;

    static byte[] readBytes(DataInputStream in) throws IOException {
        int size = in.readInt();
        return size < 0 ? null : in.readNBytes(size);
    }

    static void writeBytes(DataOutputStream out, byte[] bytes) throws IOException {
        out.writeInt(bytes == null ? -1 : bytes.length);
        if (bytes != null) out.write(bytes);
    }

    static void write(String servers, String topic, String compression, byte[] file) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", servers);
        settings.put("compression.type", compression);
        settings.put("linger.ms", "20");
        List<Future<RecordMetadata>> futures = new ArrayList<>();
        try (var producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            DataInputStream in = new DataInputStream(new ByteArrayInputStream(file));
            while (in.available() > 0) {
                long timestamp = in.readLong();
                byte[] key = readBytes(in);
                byte[] value = readBytes(in);
                RecordHeaders headers = new RecordHeaders();
                for (int left = in.readInt(); left > 0; left--) {
                    String name = new String(readBytes(in), StandardCharsets.UTF_8);
                    headers.add(name, readBytes(in));
                }
                futures.add(producer.send(new ProducerRecord<>(topic, 0, timestamp, key, value, headers)));
            }
            producer.flush();
            for (Future<RecordMetadata> each : futures) each.get();
        }
    }

    static void read(String servers, String topic, int count, Path file) throws IOException {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", servers);
        settings.put("group.id", "java-" + System.nanoTime());
        settings.put("auto.offset.reset", "earliest");
        long deadline = System.currentTimeMillis() + DEADLINE_MS;
        int found = 0;
        try (var consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
                var out = new DataOutputStream(new BufferedOutputStream(new FileOutputStream(file.toFile())))) {
            consumer.subscribe(List.of(topic));
            while (found < count) {
                if (System.currentTimeMillis() > deadline) throw new IOException(found + " of " + count + " records");
                for (ConsumerRecord<byte[], byte[]> each : consumer.poll(Duration.ofMillis(500))) {
                    if (found++ == count) break;
                    out.writeLong(each.timestamp());
                    writeBytes(out, each.key());
                    writeBytes(out, each.value());
                    Header[] headers = each.headers().toArray();
                    out.writeInt(headers.length);
                    for (Header header : headers) {
                        writeBytes(out, header.key().getBytes(StandardCharsets.UTF_8));
                        writeBytes(out, header.value());
                    }
                }
            }
        }
    }

    static void transact(String servers, String topic, int count) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", servers);
        settings.put("transactional.id", topic);
        try (var producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            producer.initTransactions();
            int partitions = producer.partitionsFor(topic).size();
            for (int number = 0; number < count; number++) {
                producer.beginTransaction();
                byte[] value = Integer.toString(number).getBytes(StandardCharsets.UTF_8);
                for (int n = 0; n < partitions; n++) producer.send(new ProducerRecord<>(topic, n, null, value));
                var offsets = Map.of(new TopicPartition(topic, 0), new OffsetAndMetadata(number));
                producer.sendOffsetsToTransaction(offsets, new ConsumerGroupMetadata(topic));
                if (number % 3 == 2) producer.abortTransaction();
                else producer.commitTransaction();
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        String servers = arguments[1];
        if (arguments[0].equals("transact")) {
            transact(servers, arguments[2], Integer.parseInt(arguments[3]));
            return;
        }
        Path place = Path.of(arguments[2]);
        if (arguments[0].equals("write")) {
            byte[] file = Files.readAllBytes(place);
            for (int n = 3; n < arguments.length; n++) {
                String[] parts = arguments[n].split("=");
                write(servers, parts[1], parts[0], file);
            }
            return;
        }
        int count = Integer.parseInt(arguments[3]);
        for (int n = 4; n < arguments.length; n++) read(servers, arguments[n], count, place.resolve(arguments[n]));
    }
}
