// A Dafka producer: each line of its standard input becomes a record of a topic.
//
// Usage: node producer.js TOWER_SUB TOWER_PUB TOPIC_FILE

import { readFileSync } from "node:fs";

import { Node } from "./node.js";

const HEAD_MS = 1000;
const NEWLINE = 10;

class Producer extends Node {
  constructor(topic) {
    super();
    this.topic = topic;
    this.kept = new Map(); // the contents of records without an ACK, by sequence
    this.acknowledged = 0n; // the records before this one have an ACK
    this.next = 0n; // the sequence of the next record
    this.line = []; // the beginning of a line whose end has not been read
    this.isInputEnded = false;
    this.subscribe("K", this.address);
    this.subscribe("F", this.address);
    this.subscribe("G", this.topic);
  }

  async start(towerSub, towerPub) {
    await super.start(towerSub, towerPub);
    setInterval(() => this.sendHead(), HEAD_MS);
    for await (const chunk of process.stdin) this.readInput(chunk);
    this.isInputEnded = true;
    const rest = Buffer.concat(this.line); // the last line may have no newline
    if (rest.length > 0) this.publish(rest);
    this.endIfAcknowledged();
  }

  // Publish each line of the input.
  readInput(chunk) {
    let start = 0;
    for (let end; (end = chunk.indexOf(NEWLINE, start)) >= 0; start = end + 1) {
      this.publish(Buffer.concat([...this.line, chunk.subarray(start, end)]));
      this.line = [];
    }
    this.line.push(chunk.subarray(start));
  }

  // Publish a record.
  publish(content) {
    this.kept.set(this.next, content);
    this.send("RECORD", this.topic, { ...this.about(this.next), content });
    this.next += 1n;
  }

  // The fields that all messages about one record have.
  about(sequence) {
    return { address: this.address, subject: this.topic, sequence };
  }

  // Tell everybody the last record's sequence, so that a peer that missed it can fetch it.
  sendHead() {
    if (this.next > 0n) this.send("HEAD", this.topic, this.about(this.next - 1n));
  }

  // Send the requested records that are kept to the node that requests them.
  onFetch(fetch) {
    if (!fetch.topic.equals(this.address) || !fetch.subject.equals(this.topic)) return;
    const end = fetch.sequence + fetch.count < this.next ? fetch.sequence + fetch.count : this.next;
    let sequence = fetch.sequence > this.acknowledged ? fetch.sequence : this.acknowledged;
    for (; sequence < end; sequence += 1n) {
      this.send("DIRECT-RECORD", fetch.address, { ...this.about(sequence), content: this.kept.get(sequence) });
    }
  }

  // Forget the record that a store has saved, and all before it.
  onAck(ack) {
    if (!ack.topic.equals(this.address) || !ack.subject.equals(this.topic) || ack.sequence >= this.next) return;
    for (; this.acknowledged <= ack.sequence; this.acknowledged += 1n) this.kept.delete(this.acknowledged);
    this.endIfAcknowledged();
  }

  // End the node if its input has ended and a store has every record.
  endIfAcknowledged() {
    if (this.isInputEnded && this.kept.size === 0) process.exit();
  }

  // Send the last record's sequence to the node that requests it.
  onGetHeads(request) {
    if (request.topic.equals(this.topic) && this.next > 0n) {
      this.send("DIRECT-HEAD", request.address, this.about(this.next - 1n));
    }
  }
}

// The topic is in a file: it may have any bytes, and Node.js decodes its arguments as UTF-8.
const [towerSub, towerPub, topicFile] = process.argv.slice(2);
await new Producer(readFileSync(topicFile)).start(towerSub, towerPub);
