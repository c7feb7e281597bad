// Runs scenarios with the JavaScript client, and prints what they see as lines of JSON. Each argument is the name of a
// scenario and its arguments, with a colon before each.
import { pathToFileURL } from "node:url";
import WebSocket from "ws";

const [, , module, url, ...given] = process.argv;
const { DafkaClient } = await import(pathToFileURL(module));
const print = (value) => process.stdout.write(`${JSON.stringify(value)}\n`);
/** Exit when everything is printed. */
const end = () => {
  client.close();
  process.stdout.write("", () => process.exit(0));
};
const client = new DafkaClient({ url, WebSocket });

const scenarios = {
  /** Accept the records of a queue that were delivered twice, release the others, and print both. */
  async consume(topic, queue, count) {
    const [first, second] = [[], []];
    for await (const record of client.consume(topic, queue, { credit: 2 })) {
      const isFirst = record.delivery_count === 1;
      const outcome = await (isFirst ? record.release() : record.renew().then(() => record.accept()));
      (isFirst ? first : second).push([record.value, outcome]);
      if (second.length === Number(count)) {
        print([first.sort(), second.sort(), await record.accept()]);
        break;
      }
    }
  },

  /** Publish records, and read them again. */
  async roundtrip(topic, count) {
    const records = Array.from({ length: Number(count) }, (_, number) => ({ key: `k${number}`, value: `${number} ä` }));
    const published = await client.publish(topic, records);
    print(published.map(({ log, offset }) => [log, offset]));
    const found = [];
    for await (const { log, offset, key, value } of client.subscribe(topic, { from: "earliest", credit: 10 })) {
      found.push([log, offset, key, value]);
      if (found.length === records.length) break;
    }
    print(found);
  },

  /** Publish numbers one after the other until stdin ends, and print how many were acknowledged. */
  async count(topic) {
    let [published, ended] = [0, false];
    process.stdin.on("data", () => (ended = true)).resume();
    const publish = async (number) => {
      await client.publish(topic, { value: `${number}` });
      published++;
    };
    const pending = new Set();
    await publish(0);
    print("begun");
    for (let number = 1; !ended; number++) {
      const each = publish(number).finally(() => pending.delete(each));
      pending.add(each);
      if (pending.size >= 200) await Promise.race(pending);
    }
    await Promise.all(pending);
    print(published);
  },

  /** Print values as they come, until there are as many as stdin says. */
  async follow(topic) {
    let wanted = Infinity;
    const found = [];
    const finish = () => {
      if (found.length < wanted) return;
      print(found);
      end();
    };
    process.stdin.on("data", (data) => {
      wanted = Number(data);
      finish();
    });
    print("following");
    for await (const { offset, value } of client.subscribe(topic, { from: "earliest" })) {
      found.push([offset, value]);
      finish();
    }
  },

  /** Publish what is refused between what is not. */
  async refused(topic) {
    const large = { value: "x".repeat(2_000_000) };
    const records = [{ value: "a" }, { value: "b" }, large, { value: "c" }, { value: 5 }, { value: "d" }];
    const publishing = [];
    for (const record of records) {
      publishing.push(client.publish(topic, record).then(({ offset }) => offset, ({ code }) => code));
      await new Promise((resolve) => setImmediate(resolve));
    }
    print(await Promise.all(publishing));
  },

  /** Take records by callback, with credit that is granted by hand. */
  async credit(topic) {
    const found = [];
    await new Promise((resolve) => {
      const subscription = client.subscribe(topic, {
        from: { offset: 2 },
        credit: 3,
        onRecords: (log, records, nextOffset) => {
          found.push([log, records.map(({ value }) => value), nextOffset]);
          const count = found.reduce((sum, [, values]) => sum + values.length, 0);
          if (count === 3) setTimeout(() => subscription.addCredit(2), 50);
          if (count === 5) resolve();
        },
      });
    });
    print(found);
  },

  /** Watch a resource, commit offsets, and describe a topic. */
  async rest(topic) {
    print(await client.describe(topic));
    await client.commit("group", topic, { 0: 1 });
    const found = [];
    await new Promise((resolve) => {
      const watch = client.watch(`/topics/${topic}`, { intervalMs: 500 }, (status, body) => {
        found.push([status, body.error?.code ?? body.name]);
        watch.close();
        resolve();
      });
    });
    print(found);
    const errors = [];
    for await (const _ of client.subscribe("none", { onError: ({ code }) => errors.push(code) })) errors.push("record");
  },

  /** Publish a record as a user with a token, and say which error ends the client. */
  async login(topic, token) {
    const own = new DafkaClient({ url, WebSocket, ...(token ? { token } : {}) });
    const error = new Promise((resolve) => own.addEventListener("error", ({ detail }) => resolve(detail.code)));
    const published = own.publish(topic, { value: "a" }).then(() => "published", ({ code }) => code);
    print([await published, (await published) === "published" ? "" : await error]);
    own.close();
  },
};

for (const each of given) {
  const [scenario, ...parts] = each.split(":");
  try {
    await scenarios[scenario](...parts);
  } catch (error) {
    print({ error: error.code ?? String(error) });
  }
}
end();
