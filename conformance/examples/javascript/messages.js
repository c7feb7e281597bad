// Dafka's messages: a topic frame, a frame of fields, and in those with a record a frame of content.

const SIGNATURE = Buffer.from([0xaa, 0xa5]);
const VERSION = Buffer.from([1]);

// The id and fields of each command.
const COMMANDS = {
  "RECORD": ["M", "address", "subject", "sequence"],
  "DIRECT-RECORD": ["D", "address", "subject", "sequence"],
  "FETCH": ["F", "address", "subject", "sequence", "count"],
  "ACK": ["K", "address", "subject", "sequence"],
  "HEAD": ["H", "address", "subject", "sequence"],
  "DIRECT-HEAD": ["E", "address", "subject", "sequence"],
  "GET-HEADS": ["G", "address"],
  "STORE-HELLO": ["L", "address"],
  "CONSUMER-HELLO": ["W", "address", "subjects"],
};
const NAMES = Object.fromEntries(Object.entries(COMMANDS).map(([name, [id]]) => [id, name]));
const WITH_CONTENT = ["RECORD", "DIRECT-RECORD"];

// A number of `size` bytes, big-endian. Numbers of eight bytes are BigInts: others are exact up to 2 ** 53 only.
function number(size, value) {
  const bytes = Buffer.alloc(8);
  bytes.writeBigUInt64BE(BigInt(value));
  return bytes.subarray(8 - size);
}

// A string: its length, in one byte or in four, and its bytes.
function string(bytes, size = 1) {
  return Buffer.concat([number(size, bytes.length), bytes]);
}

const WRITE = {
  address: (value) => string(value),
  subject: (value) => string(value),
  sequence: (value) => number(8, value),
  count: (value) => number(4, value),
  subjects: (values) => Buffer.concat([number(4, values.length), ...values.map((each) => string(each, 4))]),
};

// Reads the fields of a frame one after the other, and throws an error if the frame is too short.
class Reader {
  constructor(frame) {
    this.frame = frame;
    this.at = 0;
  }

  bytes(size) {
    const start = this.at;
    this.at += size;
    if (this.at > this.frame.length) throw new RangeError("the frame is too short");
    return this.frame.subarray(start, this.at);
  }

  string(size = 1) {
    return this.bytes(this.bytes(size).readUIntBE(0, size));
  }
}

const READ = {
  address: (reader) => reader.string(),
  subject: (reader) => reader.string(),
  sequence: (reader) => reader.bytes(8).readBigUInt64BE(),
  count: (reader) => BigInt(reader.bytes(4).readUInt32BE()),
  subjects: (reader) => {
    const subjects = [];
    for (let left = reader.bytes(4).readUInt32BE(); left > 0; left--) subjects.push(reader.string(4));
    return subjects;
  },
};

// Return the frames of a message. `message` has its fields, and the content of a record.
export function encode(name, topic, message) {
  const [id, ...fields] = COMMANDS[name];
  const encoded = fields.map((field) => WRITE[field](message[field]));
  const frames = [
    Buffer.concat([Buffer.from(id), topic]),
    Buffer.concat([SIGNATURE, Buffer.from(id), VERSION, ...encoded]),
  ];
  return WITH_CONTENT.includes(name) ? [...frames, message.content] : frames;
}

// Return the message of these frames, or null if they are malformed: nodes discard such messages silently.
export function decode(frames) {
  const id = frames[0].subarray(0, 1);
  const name = NAMES[id.toString("latin1")];
  if (name === undefined) return null;
  const hasContent = WITH_CONTENT.includes(name);
  if (frames.length !== (hasContent ? 3 : 2)) return null;
  const message = { name, topic: frames[0].subarray(1), content: frames[2] };
  const reader = new Reader(frames[1]);
  try {
    if (!reader.bytes(4).equals(Buffer.concat([SIGNATURE, id, VERSION]))) return null;
    for (const field of COMMANDS[name].slice(1)) message[field] = READ[field](reader);
  } catch (error) {
    if (error instanceof RangeError) return null;
    throw error;
  }
  return reader.at === frames[1].length ? message : null;
}
