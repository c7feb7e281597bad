// kafkajs: the same command line and files as the other drivers; see with_python.py and record_files.py.
//
//     node with_kafkajs.js write SERVERS FILE COMPRESSION=TOPIC...
//     node with_kafkajs.js read SERVERS FOLDER COUNT TOPIC...
//
// NODE_PATH names the folder of the modules.
const fs = require("fs");
const path = require("path");
const { Kafka, CompressionTypes, CompressionCodecs, logLevel } = require("kafkajs");
const SnappyCodec = require("kafkajs-snappy");
const LZ4Codec = require("kafkajs-lz4");
const { ZstdCodec } = require("zstd-codec");

const RECORDS_PER_SEND = 2000;

function readRecords(file) {
  const data = fs.readFileSync(file);
  const records = [];
  let position = 0;
  const readInt = () => {
    position += 4;
    return data.readInt32BE(position - 4);
  };
  const readBytes = () => {
    const size = readInt();
    if (size < 0) return null;
    position += size;
    return data.subarray(position - size, position);
  };
  while (position < data.length) {
    const timestamp = data.readBigInt64BE(position).toString();
    position += 8;
    const key = readBytes();
    const value = readBytes();
    const headers = {};
    for (let left = readInt(); left > 0; left--) {
      const name = readBytes().toString();
      headers[name] = readBytes();
    }
    records.push({ timestamp, key, value, headers });
  }
  return records;
}

function packBytes(bytes) {
  const size = Buffer.alloc(4);
  size.writeInt32BE(bytes === null ? -1 : bytes.length);
  return bytes === null ? [size] : [size, bytes];
}

function packRecord({ timestamp, key, value, headers }) {
  const time = Buffer.alloc(8);
  time.writeBigInt64BE(BigInt(timestamp));
  const count = Buffer.alloc(4);
  const names = Object.keys(headers || {});
  count.writeInt32BE(names.length);
  const parts = names.map((name) => [...packBytes(Buffer.from(name)), ...packBytes(headers[name])]);
  return Buffer.concat([time, ...packBytes(key), ...packBytes(value), count, ...parts.flat()]);
}

async function write(kafka, topic, compression, records) {
  const producer = kafka.producer();
  await producer.connect();
  for (let n = 0; n < records.length; n += RECORDS_PER_SEND) {
    const messages = records.slice(n, n + RECORDS_PER_SEND);
    const kind = CompressionTypes[compression === "none" ? "None" : compression.toUpperCase()];
    await producer.send({ topic, messages, compression: kind });
  }
  await producer.disconnect();
}

async function read(kafka, topic, count) {
  const consumer = kafka.consumer({ groupId: `kafkajs-${process.hrtime.bigint()}` });
  const found = [];
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  await new Promise((resolve, reject) => {
    consumer.on(consumer.events.CRASH, (event) => reject(event.payload.error));
    const eachBatch = async ({ batch }) => {
      for (const message of batch.messages) if (found.length < count) found.push(packRecord(message));
      if (found.length >= count) resolve();
    };
    consumer.run({ eachBatch }).catch(reject);
  });
  await consumer.disconnect();
  return Buffer.concat(found);
}

async function main() {
  CompressionCodecs[CompressionTypes.Snappy || CompressionTypes.SNAPPY] = SnappyCodec;
  CompressionTypes.SNAPPY = CompressionTypes.Snappy;
  CompressionCodecs[CompressionTypes.LZ4] = new LZ4Codec().codec;
  const zstd = await new Promise((resolve) => ZstdCodec.run((binding) => resolve(new binding.Streaming())));
  CompressionCodecs[CompressionTypes.ZSTD] = () => ({
    compress: async (encoder) => Buffer.from(zstd.compress(encoder.buffer)),
    decompress: async (buffer) => Buffer.from(zstd.decompress(buffer)),
  });
  const [action, servers, place, ...rest] = process.argv.slice(2);
  const kafka = new Kafka({ brokers: [servers], logLevel: logLevel.ERROR });
  if (action === "write") {
    const records = readRecords(place);
    for (const each of rest) {
      const [compression, topic] = each.split("=");
      await write(kafka, topic, compression, records);
    }
    return;
  }
  const [count, ...topics] = rest;
  for (const topic of topics) fs.writeFileSync(path.join(place, topic), await read(kafka, topic, Number(count)));
}

main().then(
  () => process.exit(0),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
