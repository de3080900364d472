// Headrace with the official OpenAI SDK: an answer, a stream that is cancelled, and an error.
import OpenAI from "openai";

const client = new OpenAI({
  baseURL: (process.env.HEADRACE_URL ?? "http://127.0.0.1:8000") + "/v1",
  apiKey: process.env.HEADRACE_API_KEY,
});
const model: string = (await client.models.list()).data[0].id;
const messages: OpenAI.Chat.ChatCompletionMessageParam[] = [
  { role: "user", content: "Name three rivers." },
];

console.log("== one answer");
const answer = await client.chat.completions.create({ model, messages, max_tokens: 32, temperature: 0 });
console.log(answer.choices[0].message.content);

console.log("== a stream, given up after ten pieces");
const stream = await client.chat.completions.create({ model, messages, max_tokens: 400, stream: true });
let pieces = 0;
for await (const chunk of stream) {
  process.stdout.write(chunk.choices[0]?.delta?.content ?? "");
  if (++pieces === 10) break; // closes the connection, which cancels the request
}
console.log();

console.log("== a refusal");
try {
  await client.chat.completions.create({ model: "no-such-model", messages });
} catch (error) {
  if (!(error instanceof OpenAI.NotFoundError)) throw error;
  console.log(`${error.code}: ${error.message}`);
}
