/**
 * A client of Dafka over WebSocket, for browsers and for Node. It is one file and needs nothing else.
 *
 *   const client = new DafkaClient({ url: "http://127.0.0.1:8080/ws" });
 *   const { log, offset } = await client.publish("orders", { key: "4711", value: "2 apples" });
 *   for await (const record of client.subscribe("orders", { from: "earliest" })) console.log(record.offset, record.value);
 *
 * The client connects again by itself when the connection is lost. Subscriptions go on behind the last record that
 * they have got. Records that were published but not acknowledged are sent again, and the broker stores each once.
 */

/**
 * @typedef {object} PublishedRecord A record to publish.
 * @property {string | null} [value] The value; null is a tombstone.
 * @property {string} [value_base64] The value in base64, if it is no text.
 * @property {string | null} [key] The key.
 * @property {string} [key_base64] The key in base64, if it is no text.
 * @property {Array<[string, string | null | {base64: string}]>} [headers] Pairs of a name and a value.
 * @property {number} [timestamp] When it was made, in milliseconds since 1970.
 *
 * @typedef {PublishedRecord & {offset: number, log: number}} ReceivedRecord A record of a subscription.
 *
 * @typedef {"earliest" | "latest" | {offset: number} | {offsets: Object<string, number>} | {time: number | string}
 *   | {group: string, otherwise?: "earliest" | "latest"}} Position Where a subscription begins.
 */

const SOCKET_OPEN = 1; // as in WebSocket.OPEN
const PROTOCOL = "dafka.json.v1";
const RETRY_MS_MIN = 250;
const RETRY_MS_MAX = 10_000;
const PING_MS = 20_000;
const PONG_MS = 20_000;
const CONNECT_MS = 20_000;
const CREDIT = 1000;
const QUEUE_CREDIT = 100;
const BATCHES_MAX = 5; // As many as a broker remembers of a producer, so that each can be sent again.
const BATCH_RECORDS_MAX = 1000;
const BATCH_CHARACTERS_MAX = 2 ** 18;
const SEQUENCES = 2 ** 31;
const MESSAGE_BYTES_MAX = 2 ** 22;
const SPLIT = new Set(["bad_request", "too_large"]);
const LEADERLESS = new Set(["not_leader", "leader_unavailable", "leader_changed"]); // all is said again after a while
const STATUSES = { unauthenticated: 401, forbidden: 403, topic_not_found: 404, too_many_requests: 429 };

/** An error that the broker has answered, or the end of the client. */
export class DafkaError extends Error {
  /**
   * @param {string} code What is wrong, for programs: `topic_not_found`, `forbidden`, `closed`...
   * @param {string} message What is wrong, for people.
   */
  constructor(code, message) {
    super(message);
    this.name = "DafkaError";
    this.code = code;
  }
}

/**
 * A client. Events: `open` when it is connected (again), `close` when the connection is lost, and `error`, whose
 * `detail` is a `DafkaError`, when the broker does not accept its credentials; it does not try again then.
 */
export class DafkaClient extends EventTarget {
  #options;
  #socket = null;
  #isOpen = false;
  #closed = null;
  #lastId = 0;
  #requests = new Map(); // id -> {message, resolve, reject}
  #subscriptions = new Map();
  #watches = new Map();
  #lanes = new Map(); // topic and log -> Lane
  #batches = new Map(); // id -> {lane, batch}
  #producer = null;
  #topics = new Map(); // topic -> promise of its number of logs
  #bytesMax = MESSAGE_BYTES_MAX;
  #turn = 0;
  #retryMs = RETRY_MS_MIN;
  #timer = null;
  #wake = () => this.#retryNow();

  /**
   * @param {object} options
   * @param {string | URL} options.url The broker's address, such as `https://broker.example.com/ws`.
   * @param {string} [options.token] A token. Without credentials, a browser uses the session of its cookie.
   * @param {string} [options.user] The name of a user.
   * @param {string} [options.password] The user's password.
   * @param {typeof WebSocket} [options.WebSocket] The implementation; Node before 22 needs the package `ws`.
   */
  constructor(options) {
    super();
    this.#options = { WebSocket: globalThis.WebSocket, ...options };
    if (!this.#options.WebSocket) throw new TypeError("expected the option WebSocket: this platform has none");
    globalThis.addEventListener?.("online", this.#wake);
    this.#connect();
  }

  /** Whether the client is connected. */
  get isOpen() {
    return this.#isOpen;
  }

  /**
   * Publish a record or several, in this order for each log. Without `log`, the keys choose the logs.
   * The promise is fulfilled when all of them are durable.
   *
   * @param {string} topic
   * @param {PublishedRecord | PublishedRecord[]} records
   * @param {{log?: number}} [options]
   * @returns {Promise<any>} `{log, offset}` of the record, or a list of them. `offset` is null if nobody knows it any more.
   */
  async publish(topic, records, { log } = {}) {
    this.#checkOpen();
    const given = Array.isArray(records) ? records : [records];
    // What is published to a topic stays in order, so this waits for the number of logs first in all cases.
    const logCount = await this.#logCount(topic);
    this.#checkOpen();
    const keyless = this.#turn++ % logCount;
    const found = given.map((record) => {
      const chosen = log ?? logOf(record, logCount) ?? keyless;
      return this.#lane(topic, chosen).add(record);
    });
    const results = await Promise.all(found);
    return Array.isArray(records) ? results : results[0];
  }

  /**
   * Subscribe to a topic. Without `onRecords`, iterate over the subscription: `for await (const record of ...)`;
   * credit is then granted while the loop goes on. With `onRecords`, grant credit with `addCredit`, or set `autoCredit`.
   *
   * @param {string} topic
   * @param {object} [options]
   * @param {Position} [options.from] Where to begin; `latest` if omitted.
   * @param {number[]} [options.logs] The logs; all if omitted.
   * @param {number} [options.credit] How many records may be under way.
   * @param {boolean} [options.autoCredit] Whether credit is granted again when `onRecords` has returned.
   * @param {(log: number, records: ReceivedRecord[], nextOffset: number) => any} [options.onRecords] Takes records.
   * @param {(error: DafkaError) => void} [options.onError] Is told when the subscription has ended by an error.
   * @param {(log: number, offset: number, nextOffset: number) => void} [options.onDropped] Is told when the log has
   *   dropped records before the subscription got them.
   * @returns {Subscription}
   */
  subscribe(topic, options = {}) {
    this.#checkOpen();
    const id = ++this.#lastId;
    const subscription = new Subscription(topic, options, {
      credit: (records) => this.#isOpen && this.#send({ type: "credit", id, records }),
      close: () => this.#forget(this.#subscriptions, id, "unsubscribe"),
    });
    this.#subscriptions.set(id, subscription);
    if (this.#isOpen) this.#send(subscription.request(id));
    return subscription;
  }

  /**
   * Consume a queue, which is a share group: `for await (const record of client.consume("emails", "mailer"))`. Each
   * record has the methods `accept`, `release`, `reject` and `renew`. `credit` is how many records the client has at most
   * that are not accepted, released or rejected. When the subscription ends, the broker releases the others. When the
   * connection is lost, it releases them, too, and the records that the loop has not taken yet are dropped.
   *
   * @param {string} topic
   * @param {string} queue The share group.
   * @param {object} [options]
   * @param {number[]} [options.logs] The logs; all if omitted.
   * @param {number} [options.credit] How many records the client has at most.
   * @returns {QueueSubscription}
   */
  consume(topic, queue, options = {}) {
    this.#checkOpen();
    const id = ++this.#lastId;
    const subscription = new QueueSubscription(topic, queue, options, {
      credit: (records) => this.#isOpen && this.#send({ type: "credit", id, records }),
      acknowledge: (said) => this.#request({ type: "acknowledge", topic, queue, ...said }),
      close: () => this.#forget(this.#subscriptions, id, "unsubscribe"),
    });
    this.#subscriptions.set(id, subscription);
    if (this.#isOpen) this.#send(subscription.request(id));
    return subscription;
  }

  /**
   * Follow a resource of the HTTP API: `callback` gets the status and the body at first and whenever they have changed.
   *
   * @param {string} path The path and the query, such as `/topics?prefix=a`.
   * @param {{intervalMs?: number}} options How often the broker looks at it, at least 500 ms.
   * @param {(status: number, body: any) => void} callback
   * @returns {{close: () => void}}
   */
  watch(path, { intervalMs = 2000 } = {}, callback) {
    this.#checkOpen();
    const id = ++this.#lastId;
    const request = { type: "watch", id, path, interval_ms: intervalMs };
    this.#watches.set(id, { request, callback });
    if (this.#isOpen) this.#send(request);
    return { close: () => this.#forget(this.#watches, id, "unwatch") };
  }

  /**
   * Commit offsets of a group.
   *
   * @param {string} group
   * @param {string} topic
   * @param {Object<string, number>} offsets For each log, the offset of the next record to read.
   */
  async commit(group, topic, offsets) {
    await this.#request({ type: "commit", group, topic, offsets });
  }

  /**
   * Return the logs of a topic.
   *
   * @param {string} topic
   * @returns {Promise<Array<{log: number, start_offset: number, end_offset: number}>>}
   */
  async describe(topic) {
    return (await this.#request({ type: "describe", topic })).logs;
  }

  /** End the connection. What was not acknowledged is rejected; subscriptions end. */
  close() {
    this.#end(new DafkaError("closed", "the client was closed"));
  }

  // Requests

  #checkOpen() {
    if (this.#closed) throw this.#closed;
  }

  #request(message) {
    this.#checkOpen();
    return new Promise((resolve, reject) => {
      const request = { message: { ...message, id: ++this.#lastId }, resolve, reject };
      this.#requests.set(request.message.id, request);
      if (this.#isOpen) this.#send(request.message);
    });
  }

  #forget(known, id, type) {
    if (known.delete(id) && this.#isOpen) this.#send({ type, id });
  }

  #logCount(topic) {
    let found = this.#topics.get(topic);
    if (!found) {
      found = this.#request({ type: "describe", topic, create: true }).then((answer) => answer.logs.length);
      this.#topics.set(topic, found);
      found.catch(() => this.#topics.delete(topic));
    }
    return found;
  }

  #lane(topic, log) {
    const name = `${log}/${topic}`;
    let lane = this.#lanes.get(name);
    if (!lane) {
      lane = new Lane(topic, log, {
        newProducer: () => this.#request({ type: "init_producer" }),
        send: (batch) => {
          const id = ++this.#lastId;
          this.#batches.set(id, { lane, batch });
          if (this.#isOpen) this.#send(lane.request(batch, id));
        },
        refresh: () => this.#topics.delete(topic),
        bytesMax: () => this.#bytesMax,
      });
      this.#lanes.set(name, lane);
    }
    return lane;
  }

  // The connection

  #connect() {
    const socket = new this.#options.WebSocket(socketUrl(this.#options.url), [PROTOCOL]);
    this.#socket = socket;
    const isCurrent = () => this.#socket === socket;
    this.#setTimer(CONNECT_MS, () => this.#lose(socket));
    socket.addEventListener("message", (event) => {
      if (!isCurrent()) return;
      this.#setTimer(PING_MS, () => this.#ping(socket));
      this.#receive(JSON.parse(event.data));
    });
    socket.addEventListener("close", () => isCurrent() && this.#lose(socket));
    socket.addEventListener("error", () => {}); // `close` follows
  }

  #ping(socket) {
    if (!this.#isOpen) return this.#lose(socket);
    this.#send({ type: "ping", id: 0 });
    this.#setTimer(PONG_MS, () => this.#lose(socket));
    return undefined;
  }

  #setTimer(ms, callback) {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(callback, ms);
  }

  /** The connection is lost: connect again, later each time it fails. */
  #lose(socket) {
    const wasOpen = this.#isOpen;
    this.#isOpen = false;
    this.#socket = null;
    socket.close();
    if (this.#closed) return;
    this.#setTimer(this.#retryMs * (0.5 + Math.random() / 2), () => this.#connect());
    this.#retryMs = Math.min(this.#retryMs * 2, RETRY_MS_MAX);
    if (wasOpen) this.dispatchEvent(new Event("close"));
  }

  #retryNow() {
    if (!this.#socket && !this.#closed) this.#setTimer(0, () => this.#connect());
  }

  /** Send a message, unless the socket is closing: what is not answered is sent again on the next one. */
  #send(message) {
    if (this.#socket.readyState !== SOCKET_OPEN) return;
    this.#socket.send(typeof message === "string" ? message : JSON.stringify(message));
  }

  #end(error) {
    if (this.#closed) return;
    this.#closed = error;
    this.#isOpen = false;
    clearTimeout(this.#timer);
    globalThis.removeEventListener?.("online", this.#wake);
    this.#socket?.close();
    for (const { reject } of this.#requests.values()) reject(error);
    for (const lane of this.#lanes.values()) lane.end(error);
    for (const subscription of this.#subscriptions.values()) subscription.end(error.code === "closed" ? null : error);
    this.#requests.clear();
    this.#subscriptions.clear();
    this.#watches.clear();
    this.#batches.clear();
  }

  #refuse(code, message) {
    const error = new DafkaError(code, message);
    this.#end(error);
    this.dispatchEvent(new CustomEvent("error", { detail: error }));
  }

  /** Say again what the broker does not know on a new connection. */
  #resume() {
    this.#isOpen = true;
    this.#retryMs = RETRY_MS_MIN;
    for (const [id, subscription] of this.#subscriptions) this.#send(subscription.request(id));
    for (const { request } of this.#watches.values()) this.#send(request);
    for (const { message } of this.#requests.values()) this.#send(message);
    for (const [id, { lane, batch }] of this.#batches) this.#send(lane.request(batch, id));
    this.dispatchEvent(new Event("open"));
  }

  // Messages

  #receive(message) {
    const { id } = message;
    switch (message.type) {
      case "records":
      case "deliveries":
        this.#subscriptions.get(id)?.take(message);
        break;
      case "subscribed":
      case "consuming":
        this.#subscriptions.get(id)?.begin(message);
        break;
      case "view":
        this.#watches.get(id)?.callback(message.status, message.body);
        break;
      case "published":
        this.#takeBatch(id, (lane, batch) => lane.succeed(batch, message.offsets[0]));
        break;
      case "welcome":
        this.#welcome(message);
        break;
      case "authenticated":
        this.#resume();
        break;
      case "error":
        this.#fail(id, new DafkaError(message.code, message.message));
        break;
      default:
        this.#requests.get(id)?.resolve(message);
        this.#requests.delete(id);
    }
  }

  #takeBatch(id, then) {
    const found = this.#batches.get(id);
    this.#batches.delete(id);
    if (found) then(found.lane, found.batch);
    return Boolean(found);
  }

  #welcome({ needs_authentication: isNeeded, message_bytes_max: bytesMax }) {
    this.#bytesMax = bytesMax;
    const { token, user, password } = this.#options;
    if (!isNeeded) this.#resume();
    else if (token) this.#send({ type: "authenticate", id: 0, token });
    else if (user) this.#send({ type: "authenticate", id: 0, user, password });
    else this.#refuse("unauthenticated", "the broker expects a login: a token, or a user with a password");
  }

  #fail(id, error) {
    if (!this.#isOpen) return this.#refuse(error.code, error.message);
    if (LEADERLESS.has(error.code) && !this.#watches.has(id)) return this.#lose(this.#socket);
    if (this.#takeBatch(id, (lane, batch) => lane.fail(batch, error))) return undefined;
    const subscription = this.#subscriptions.get(id);
    const watch = this.#watches.get(id);
    this.#subscriptions.delete(id);
    this.#watches.delete(id);
    subscription?.end(error);
    watch?.callback(STATUSES[error.code] ?? 400, { error: { code: error.code, message: error.message } });
    this.#requests.get(id)?.reject(error);
    this.#requests.delete(id);
    return undefined;
  }
}

/** A subscription. `DafkaClient.subscribe` makes it. */
export class Subscription {
  #topic;
  #options;
  #client;
  #credit; // how many records the broker may still send
  #consumed = 0;
  #positions = {};
  #waiting = []; // records that the loop has not taken yet
  #next = 0;
  #wake = null;
  #ended = false;
  #error = null;

  constructor(topic, options, client) {
    this.#topic = topic;
    this.#options = { from: "latest", credit: CREDIT, ...options };
    this.#client = client;
    this.#credit = this.#options.credit;
  }

  /** The offset of the next record in each log, by the number of the log. */
  get positions() {
    return { ...this.#positions };
  }

  /** Let the broker send further records. */
  addCredit(records) {
    if (this.#ended || records <= 0) return;
    this.#credit += records;
    this.#client.credit(records);
  }

  /** End the subscription. A loop over it ends, too. */
  close() {
    this.#client.close();
    this.end(null);
  }

  async *[Symbol.asyncIterator]() {
    try {
      for (;;) {
        while (this.#next < this.#waiting.length) {
          const record = this.#waiting[this.#next++];
          yield record;
          this.#consume(1);
        }
        this.#waiting = [];
        this.#next = 0;
        if (this.#ended) break;
        await new Promise((resolve) => (this.#wake = resolve));
      }
      if (this.#error) throw this.#error;
    } finally {
      this.close();
    }
  }

  /** @private */
  request(id) {
    const { logs, from } = this.#options;
    const resumed = Object.keys(this.#positions).length ? { offsets: this.#positions } : from;
    return { type: "subscribe", id, topic: this.#topic, from: resumed, credit: this.#credit, ...(logs && { logs }) };
  }

  /** @private */
  begin({ logs }) {
    for (const { log, offset } of logs) this.#advance(log, offset, offset);
  }

  /** @private */
  take({ log, offset, next_offset: nextOffset, records }) {
    if (this.#ended) return;
    this.#credit -= records.length;
    this.#advance(log, offset, nextOffset);
    for (const record of records) record.log = log;
    const { onRecords, autoCredit } = this.#options;
    if (!onRecords) {
      for (const record of records) this.#waiting.push(record);
      this.#wake?.();
    } else {
      const result = onRecords(log, records, nextOffset);
      if (!autoCredit) return;
      const consumed = () => this.#consume(records.length);
      Promise.resolve(result).then(consumed, (error) => {
        this.#client.close();
        this.end(error);
      });
    }
  }

  /** @private */
  end(error) {
    if (this.#ended) return;
    this.#ended = true;
    this.#error = error;
    if (error) this.#options.onError?.(error);
    this.#wake?.();
  }

  #advance(log, offset, nextOffset) {
    const expected = this.#positions[log];
    this.#positions[log] = nextOffset;
    if (expected !== undefined && offset > expected) this.#options.onDropped?.(log, expected, offset);
  }

  /** Grant credit for what was consumed, not for each record alone. */
  #consume(count) {
    this.#consumed += count;
    if (this.#consumed * 2 < this.#options.credit) return;
    this.addCredit(this.#consumed);
    this.#consumed = 0;
  }
}

/** A subscription to a queue. `DafkaClient.consume` makes it. */
export class QueueSubscription {
  #topic;
  #queue;
  #options;
  #client;
  #receipt = null;
  #waiting = []; // records that the loop has not taken yet
  #said = []; // acknowledgements to send together: {receipt, message, resolve, reject}
  #wake = null;
  #ended = false;
  #error = null;

  constructor(topic, queue, options, client) {
    this.#topic = topic;
    this.#queue = queue;
    this.#options = { credit: QUEUE_CREDIT, ...options };
    this.#client = client;
  }

  /** End the subscription. A loop over it ends, too. */
  close() {
    this.#client.close();
    this.end(null);
  }

  async *[Symbol.asyncIterator]() {
    try {
      while (!this.#ended) {
        if (this.#waiting.length) yield this.#waiting.shift();
        else await new Promise((resolve) => (this.#wake = resolve));
      }
      if (this.#error) throw this.#error;
    } finally {
      this.close();
    }
  }

  /** @private */
  request(id) {
    this.#waiting = [];
    this.#receipt = null;
    const { logs, credit } = this.#options;
    return { type: "consume", id, topic: this.#topic, queue: this.#queue, credit, ...(logs && { logs }) };
  }

  /** @private */
  begin({ receipt }) {
    this.#receipt = receipt;
  }

  /** @private */
  take({ records }) {
    const receipt = this.#receipt;
    const say = (record, type) => this.#say(receipt, { log: record.log, offset: record.offset, type });
    for (const record of records) this.#waiting.push(new QueuedRecord(record, say));
    this.#wake?.();
  }

  /** @private */
  end(error) {
    if (this.#ended) return;
    this.#ended = true;
    this.#error = error;
    this.#wake?.();
  }

  /** Acknowledge a record, together with others that are acknowledged now. */
  #say(receipt, message) {
    return new Promise((resolve, reject) => {
      this.#said.push({ receipt, message, resolve, reject });
      if (this.#said.length === 1) queueMicrotask(() => this.#sendSaid());
    });
  }

  #sendSaid() {
    const said = this.#said;
    this.#said = [];
    for (const receipt of new Set(said.map((each) => each.receipt))) {
      this.#acknowledge(receipt, said.filter((each) => each.receipt === receipt));
    }
  }

  async #acknowledge(receipt, said) {
    const acknowledgements = said.map(({ message }) => message);
    try {
      const { refused } = await this.#client.acknowledge({ receipt, acknowledgements });
      for (const { message, resolve } of said) {
        const isIn = ({ log, offset, last }) => message.log === log && offset <= message.offset && message.offset <= last;
        resolve(!refused.some(isIn));
      }
      const settled = acknowledgements.filter(({ type }) => type !== "renew").length;
      if (settled && receipt === this.#receipt && !this.#ended) this.#client.credit(settled);
    } catch (error) {
      for (const { reject } of said) reject(error);
    }
  }
}

/** A record of a queue, which is locked for the client. It has the fields of the record, too. */
class QueuedRecord {
  #say;

  constructor(record, say) {
    Object.assign(this, record);
    this.#say = say;
  }

  /** The work is done: the record is never delivered again. The promise is fulfilled with false if the lock was lost. */
  accept() {
    return this.#say(this, "accept");
  }

  /** Have the record delivered again. See `accept`. */
  release() {
    return this.#say(this, "release");
  }

  /** Have the record never delivered again. See `accept`. */
  reject() {
    return this.#say(this, "reject");
  }

  /** Take more time: the lock begins anew. See `accept`. */
  renew() {
    return this.#say(this, "renew");
  }
}

/** What is published to one log, in batches that are numbered so that the broker stores each once. */
class Lane {
  #topic;
  #log;
  #client;
  #producer = null;
  #sequence = 0;
  #waiting = []; // {text, count, resolve, reject}
  #sent = []; // batches without an answer, in order
  #refused = []; // batches to send again behind one that has failed
  #isStarting = false;
  #failed = null;

  constructor(topic, log, client) {
    this.#topic = topic;
    this.#log = log;
    this.#client = client;
  }

  add(record) {
    return new Promise((resolve, reject) => {
      const text = JSON.stringify(record);
      const bytesMax = this.#client.bytesMax() - 1024;
      if (text.length * 3 > bytesMax && new TextEncoder().encode(text).length > bytesMax) {
        reject(new DafkaError("too_large", `the broker takes at most ${bytesMax} bytes in a message`));
        return;
      }
      this.#waiting.push({ text, resolve, reject });
      if (this.#waiting.length === 1) queueMicrotask(() => this.#sendMore());
    });
  }

  /** Return the message that publishes a batch. */
  request({ texts, sequence, producer }, id) {
    const { producer_id: producerId, producer_epoch: epoch } = producer;
    const head = { type: "publish", id, topic: this.#topic, log: this.#log };
    const numbers = { producer_id: producerId, producer_epoch: epoch, base_sequence: sequence };
    return `${JSON.stringify({ ...head, ...numbers }).slice(0, -1)},"records":[${texts.join(",")}]}`;
  }

  succeed(batch, { offset }) {
    this.#remove(batch);
    batch.entries.forEach(({ resolve }, index) => {
      resolve({ log: this.#log, offset: offset === null ? null : offset + index });
    });
    this.#sendMore();
  }

  fail(batch, error) {
    this.#remove(batch);
    // The batches behind one that was refused do not follow what the broker has: they are sent again, renumbered.
    if (error.code === "conflict" && this.#failed) {
      this.#refused.push(batch);
    } else if (SPLIT.has(error.code) && batch.entries.length > 1) {
      // Only some of the records may be to blame.
      this.#failed ??= batch;
      const half = batch.entries.length >> 1;
      this.#refused.push({ entries: batch.entries.slice(0, half) }, { entries: batch.entries.slice(half) });
    } else {
      this.#failed ??= batch;
      if (error.code === "conflict") this.#producer = null;
      this.#client.refresh();
      for (const { reject } of batch.entries) reject(error);
    }
    this.#sendMore();
  }

  end(error) {
    const batches = [...this.#sent, ...this.#refused];
    for (const { reject } of [...batches.flatMap(({ entries }) => entries), ...this.#waiting]) reject(error);
    this.#sent = this.#refused = this.#waiting = [];
  }

  #remove(batch) {
    this.#sent = this.#sent.filter((each) => each !== batch);
  }

  #sendMore() {
    if (this.#failed) {
      if (this.#sent.length) return;
      this.#sequence = this.#failed.sequence;
      this.#failed = null;
    }
    if (!this.#waiting.length && !this.#refused.length) return;
    if (!this.#producer) {
      this.#start();
      return;
    }
    while (this.#sent.length < BATCHES_MAX) {
      const entries = this.#refused.shift()?.entries ?? this.#takeWaiting();
      if (!entries.length) return;
      const texts = entries.map(({ text }) => text);
      const batch = { entries, texts, sequence: this.#sequence, producer: this.#producer };
      this.#sequence = (this.#sequence + entries.length) % SEQUENCES;
      this.#sent.push(batch);
      this.#client.send(batch);
    }
  }

  #takeWaiting() {
    let [count, characters] = [0, 0];
    while (count < Math.min(this.#waiting.length, BATCH_RECORDS_MAX)) {
      characters += this.#waiting[count].text.length;
      if (count && characters > Math.min(BATCH_CHARACTERS_MAX, this.#client.bytesMax() / 4)) break;
      count++;
    }
    return this.#waiting.splice(0, count);
  }

  #start() {
    if (this.#isStarting) return;
    this.#isStarting = true;
    this.#client.newProducer().then(
      (producer) => {
        this.#isStarting = false;
        this.#producer = producer;
        this.#sequence = 0;
        this.#sendMore();
      },
      (error) => {
        this.#isStarting = false;
        this.end(error);
      },
    );
  }
}

/** Return the log of a record with a key, which is the one that Kafka's clients choose; undefined without a key. */
function logOf({ key, key_base64: encoded }, logCount) {
  let bytes;
  if (typeof encoded === "string") bytes = Uint8Array.from(atob(encoded), (each) => each.charCodeAt(0));
  else if (typeof key === "string") bytes = new TextEncoder().encode(key);
  else return undefined;
  return (murmur2(bytes) & 0x7fffffff) % logCount;
}

/** MurmurHash2 with the seed of Kafka. */
function murmur2(bytes) {
  const factor = 0x5bd1e995;
  const whole = bytes.length & ~3;
  let hash = 0x9747b28c ^ bytes.length;
  for (let at = 0; at < whole; at += 4) {
    let part = bytes[at] | (bytes[at + 1] << 8) | (bytes[at + 2] << 16) | (bytes[at + 3] << 24);
    part = Math.imul(part, factor);
    part = Math.imul(part ^ (part >>> 24), factor);
    hash = Math.imul(hash, factor) ^ part;
  }
  if (bytes.length > whole) {
    for (let at = whole; at < bytes.length; at++) hash ^= bytes[at] << (8 * (at - whole));
    hash = Math.imul(hash, factor);
  }
  hash = Math.imul(hash ^ (hash >>> 13), factor);
  return hash ^ (hash >>> 15);
}

function socketUrl(given) {
  const url = new URL(given, globalThis.location?.href);
  url.protocol = url.protocol.replace(/^http/, "ws");
  return url.href;
}
