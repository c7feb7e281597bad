// A Dafka consumer: it prints each record of a topic as a line: the producer's address, the sequence, the content.
//
// Usage: node consumer.js TOWER_SUB TOWER_PUB TOPIC_FILE [--latest]

import { readFileSync } from "node:fs";

import { Node } from "./node.js";

const REPEAT_MS = 1000;
const FETCH_MAX = 10_000n;
const HEADS_REQUESTS = 3;

class Consumer extends Node {
  constructor(topic, startsAtLatest) {
    super();
    this.topic = topic;
    this.startsAtLatest = startsAtLatest;
    this.partitions = new Map(); // what it knows of each producer's records, by the producer's address
    this.headsRequests = 0; // how often GET-HEADS is still to be sent
    this.subscribe("M", this.topic);
    this.subscribe("H", this.topic);
    this.subscribe("D", this.address);
    this.subscribe("E", this.address);
    this.subscribe("L", this.address);
  }

  async start(towerSub, towerPub) {
    await super.start(towerSub, towerPub);
    setInterval(() => this.requestHeads(), REPEAT_MS);
    setInterval(() => this.fetchAll(), REPEAT_MS / 4);
  }

  // Return the partition that a message is about, or undefined if it is about another topic. If the consumer starts at
  // the latest record, `begin` is the first sequence to deliver of a partition that was unknown.
  partition(message, begin) {
    if (!message.subject.equals(this.topic)) return undefined;
    const key = message.address.toString("latin1");
    if (!this.partitions.has(key)) {
      this.partitions.set(key, {
        address: Buffer.from(message.address),
        next: this.startsAtLatest ? begin : 0n, // the sequence of the next record to deliver
        end: 0n, // the sequence after the last record that is known to exist
        fetched: 0n, // the end of the last FETCH
        progressAt: 0, // when a record was delivered or requested
      });
    }
    return this.partitions.get(key);
  }

  // Deliver a record if it is the next one. One that is early is fetched later, in its turn.
  onRecord(record) {
    const partition = this.partition(record, record.sequence);
    if (partition === undefined) return;
    if (record.sequence === partition.next) {
      this.deliver(record);
      partition.next += 1n;
      partition.progressAt = Date.now();
    }
    this.learnOf(record, partition);
  }

  // Print a record.
  deliver(record) {
    process.stdout.write(`${record.address} ${record.sequence} `);
    process.stdout.write(record.content);
    process.stdout.write("\n");
  }

  // Learn of a partition's last record.
  onHead(head) {
    const partition = this.partition(head, head.sequence + 1n);
    if (partition !== undefined) this.learnOf(head, partition);
  }

  learnOf(message, partition) {
    if (message.sequence >= partition.end) partition.end = message.sequence + 1n;
    this.fetch(partition);
  }

  // Request missing records, unless a request is being answered.
  fetch(partition) {
    const isAnswered = partition.next < partition.fetched && Date.now() < partition.progressAt + REPEAT_MS;
    if (partition.next >= partition.end || isAnswered) return;
    const missing = partition.end - partition.next;
    const count = missing < FETCH_MAX ? missing : FETCH_MAX;
    partition.fetched = partition.next + count;
    partition.progressAt = Date.now();
    const about = { address: this.address, subject: this.topic };
    this.send("FETCH", partition.address, { ...about, sequence: partition.next, count });
  }

  // Request missing records of all partitions again, if nobody has answered.
  fetchAll() {
    for (const partition of this.partitions.values()) this.fetch(partition);
  }

  // Take a record that was sent to this node only.
  onDirectRecord(record) {
    if (record.topic.equals(this.address)) this.onRecord(record);
  }

  // Learn of a partition's last record from a message to this node only.
  onDirectHead(head) {
    if (head.topic.equals(this.address)) this.onHead(head);
  }

  // Request heads from a new peer. Several times: this node may not be connected to the peer yet.
  onSubscription(prefix) {
    const topicFrame = Buffer.concat([Buffer.from("G"), this.topic]);
    if (topicFrame.subarray(0, prefix.length).equals(prefix)) {
      this.headsRequests = HEADS_REQUESTS;
      this.requestHeads();
    }
  }

  // Request the heads of the topic.
  requestHeads() {
    if (this.headsRequests > 0) {
      this.headsRequests -= 1;
      this.send("GET-HEADS", this.topic, { address: this.address });
    }
  }

  // Tell a store which topic this consumer is subscribed to.
  onStoreHello(hello) {
    if (hello.topic.equals(this.address)) {
      this.send("CONSUMER-HELLO", hello.address, { address: this.address, subjects: [this.topic] });
    }
  }
}

// The topic is in a file: it may have any bytes, and Node.js decodes its arguments as UTF-8.
const [towerSub, towerPub, topicFile, start] = process.argv.slice(2);
await new Consumer(readFileSync(topicFile), start === "--latest").start(towerSub, towerPub);
