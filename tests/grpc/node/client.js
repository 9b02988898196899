// A program that uses Penstock with nothing but its proto: it publishes, consumes with ack, nack and reject, and prints what it saw.
//
//   node client.js ADDRESS PROTO TOKEN

'use strict';

const grpc = require('@grpc/grpc-js');
const protoLoader = require('@grpc/proto-loader');

const [address, proto, token] = process.argv.slice(2);
const { penstock } = grpc.loadPackageDefinition(protoLoader.loadSync(proto, { longs: Number, enums: String, oneofs: true }));
const credentials = grpc.credentials.createInsecure();
const messages = new penstock.v1.Penstock(address, credentials);
const admin = new penstock.v1.Admin(address, credentials);
const metadata = new grpc.Metadata();
metadata.set('authorization', `Bearer ${token}`);

const TOPIC = 'orders';
const COUNT = 100;

function call(client, method, request, sent = metadata) {
  return new Promise((resolve, reject) => {
    client[method](request, sent, (error, answer) => (error ? reject(error) : resolve(answer)));
  });
}

// How a call fails: its status, and the code that never changes.
async function failure(client, method, request, sent) {
  try {
    await call(client, method, request, sent);
  } catch (error) {
    return [grpc.status[error.code], String(error.metadata.get('penstock-code')[0])];
  }
  return null;
}

function publishStream(values) {
  return new Promise((resolve, reject) => {
    const stream = messages.PublishStream(metadata);
    const offsets = [];
    stream.on('data', (answer) => offsets.push(answer.published.receipts[0].offset));
    stream.on('error', reject);
    stream.on('end', () => resolve(offsets));
    for (const value of values) {
      stream.write({ topic: TOPIC, messages: [{ value: Buffer.from(value) }] });
    }
    stream.end();
  });
}

// Ack all, but nack every tenth message the first time, and reject number 7; ten at a time.
function consume(wanted) {
  return new Promise((resolve, reject) => {
    const stream = messages.Subscribe(metadata);
    const seen = { acked: [], again: [], rejected: [], late: 0, mostAtOnce: 0 };
    stream.on('error', reject);
    stream.on('end', () => resolve(seen));
    stream.on('data', (response) => {
      if (response.event === 'recall') {
        stream.write({ recalled: true }); // each message is begun as it comes: there is none to give back
      } else if (response.event === 'settled') {
        seen.late += response.settled.late || 0;
        stream.end();
      } else if (response.event === 'deliveries') {
        const request = { ack: [], nack: [], credit: response.deliveries.messages.length };
        seen.mostAtOnce = Math.max(seen.mostAtOnce, request.credit);
        for (const { tag, attempt, message } of response.deliveries.messages) {
          const tags = { first: tag, count: 1 };
          const number = Number(message.value.toString());
          if (number === 7) {
            request.nack.push({ tags: [tags], reason: 'unlucky', reject: true });
            seen.rejected.push(number);
          } else if (number % 10 === 0 && attempt === 1) {
            request.nack.push({ tags: [tags], delayMs: 0, reason: 'again' });
            seen.again.push(number);
          } else {
            request.ack.push(tags);
            seen.acked.push(number);
          }
        }
        if (seen.acked.length + seen.rejected.length === wanted) {
          Object.assign(request, { id: 1, durable: true, credit: 0 });
        }
        stream.write(request);
      }
    });
    stream.write({ start: { topic: TOPIC, group: 'node', backoffMs: 0, maxDeliveries: 5, recallable: true }, credit: 10 });
  });
}

async function main() {
  const result = {};
  await call(admin, 'CreateTopic', { name: TOPIC, settings: { sync: 'SYNC_MODE_ALWAYS' } });
  const half = Array.from({ length: COUNT / 2 }, (_, number) => ({ value: Buffer.from(String(number)), key: Buffer.from('k') }));
  const { receipts } = await call(messages, 'Publish', { topic: TOPIC, messages: half });
  result.published = receipts.map((receipt) => receipt.offset || 0);
  result.streamed = await publishStream(Array.from({ length: COUNT / 2 }, (_, number) => String(COUNT / 2 + number)));
  result.consumed = await consume(COUNT);
  result.refusals = {
    name: await failure(messages, 'Publish', { topic: '../x', messages: half }),
    enum: await failure(messages, 'Publish', { topic: TOPIC, messages: half, sync: 'SYNC_MODE_UNSPECIFIED' }),
    topic: await failure(admin, 'GetTopic', { topic: 'none' }),
    token: await failure(admin, 'GetStats', {}, new grpc.Metadata()),
  };
  const stats = await call(admin, 'GetStats', { topic: TOPIC });
  result.acked = stats.topics[TOPIC].groups.node.acked;
  console.log(JSON.stringify(result));
  messages.close();
  admin.close();
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
