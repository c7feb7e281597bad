// A Dafka node: it announces itself to a tower, connects to all other nodes, and exchanges messages with them.

import { randomUUID } from "node:crypto";

import * as zmq from "zeromq";

import { decode, encode } from "./messages.js";

const BEACON_MS = 1000;
const SILENCE_MS = 4000;
const UNLIMITED = 0; // by default, ZeroMQ drops messages if 1000 of them wait for a slow peer

export class Node {
  constructor() {
    this.address = Buffer.from(randomUUID().replaceAll("-", "").toUpperCase());
    this.peers = new Map(); // the endpoint and the time of the last beacon of each peer, by its address
    this.publisher = new zmq.XPublisher({
      sendHighWaterMark: UNLIMITED,
      verbosity: "allSubs", // by default, a second peer's subscription to the same messages is not reported
    });
    this.subscriber = new zmq.Subscriber({ receiveHighWaterMark: UNLIMITED });
    this.beaconPublisher = new zmq.Publisher();
    this.beaconSubscriber = new zmq.Subscriber();
    this.outboxes = new Map(); // the messages to send, by socket
  }

  // Connect to a tower, and take part until the process ends.
  async start(towerSub, towerPub) {
    await this.publisher.bind("tcp://*:0");
    const port = this.publisher.lastEndpoint.split(":").at(-1);
    this.beacon = ["B", this.address, "", port];
    this.beaconPublisher.connect(towerSub);
    this.beaconSubscriber.subscribe();
    this.beaconSubscriber.connect(towerPub);
    setInterval(() => this.sendBeacon(), BEACON_MS);
    setInterval(() => this.leaveSilentPeers(), BEACON_MS);
    this.read(this.beaconSubscriber, (frames) => this.receiveBeacon(frames));
    this.read(this.subscriber, (frames) => this.receiveMessage(frames));
    this.read(this.publisher, (frames) => this.receiveSubscription(frames[0]));
  }

  // Call a function for each message of a socket.
  async read(socket, handle) {
    for await (const frames of socket) handle(frames);
  }

  // Send a message after those before it: a socket of zeromq.js sends only one at a time.
  async sendFrames(socket, frames) {
    const waiting = this.outboxes.get(socket);
    if (waiting !== undefined) {
      waiting.push(frames);
      return;
    }
    for (let batch = [frames]; batch.length > 0; batch = this.outboxes.get(socket)) {
      this.outboxes.set(socket, []);
      for (const each of batch) await socket.send(each);
    }
    this.outboxes.delete(socket);
  }

  // Tell the tower this node's address and port. The tower adds the host, which is empty here.
  sendBeacon() {
    this.sendFrames(this.beaconPublisher, this.beacon);
  }

  // Learn of another node from the tower.
  receiveBeacon(frames) {
    const [kind, address, endpoint] = frames.map((frame) => frame.toString("latin1"));
    if (kind === "W" && frames.length === 1) {
      this.sendBeacon(); // the tower's welcome: it receives beacons from now on
    } else if (kind === "B" && frames.length === 3 && !frames[1].equals(this.address)) {
      this.meet(address, endpoint);
    }
  }

  // Connect to a peer, unless this node is connected to it.
  meet(address, endpoint) {
    if (this.peers.get(address)?.endpoint !== endpoint) {
      try {
        this.subscriber.connect(endpoint);
      } catch {
        return; // not an endpoint
      }
      this.leave(address);
      this.sendBeacon(); // so that the peer need not wait for the next regular one
    }
    this.peers.set(address, { endpoint, heardAt: Date.now() });
  }

  // Forget a peer.
  leave(address) {
    const endpoint = this.peers.get(address)?.endpoint;
    this.peers.delete(address);
    const isShared = [...this.peers.values()].some((peer) => peer.endpoint === endpoint);
    if (endpoint !== undefined && !isShared) this.subscriber.disconnect(endpoint);
  }

  // Disconnect from the peers that have sent no beacon for some time.
  leaveSilentPeers() {
    for (const [address, { heardAt }] of this.peers) {
      if (heardAt + SILENCE_MS < Date.now()) this.leave(address);
    }
  }

  // Subscribe to the messages with this command's id and this topic.
  subscribe(id, topic) {
    this.subscriber.subscribe(Buffer.concat([Buffer.from(id), topic]));
  }

  // Publish a message to the peers that subscribe to its command and topic.
  send(name, topic, message) {
    this.sendFrames(this.publisher, encode(name, topic, message));
  }

  // Call the method for a message: `onFetch` for FETCH. Messages without a method are discarded.
  receiveMessage(frames) {
    const message = decode(frames);
    if (message === null) return;
    const words = message.name.toLowerCase().split("-");
    this["on" + words.map((word) => word[0].toUpperCase() + word.slice(1)).join("")]?.(message);
  }

  // Learn what a peer subscribes to: a subscription is the byte 1 and a prefix.
  receiveSubscription(frame) {
    if (frame[0] === 1) this.onSubscription(frame.subarray(1));
  }

  // Roles that send something to a new subscriber override this.
  onSubscription(_prefix) {}
}
