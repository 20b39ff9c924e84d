// Reads server-sent events from a fetch response, and what a refusal says.

/** The connection was lost, or there was none; the browser's own words for it say nothing that helps. */
export class NoConnection extends Error {
  /** The error that a failed request throws: an abort as it is, all else as this. */
  static of(error) {
    return error.name === "AbortError" ? error : new NoConnection(error.message);
  }
}

/** Yields the data of each event, without the final `[DONE]`. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  try {
    for (;;) {
      const { value, done } = await reader.read().catch((error) => {
        throw NoConnection.of(error);
      });
      if (done) return;
      buffer += value;
      for (let end; (end = buffer.indexOf("\n\n")) >= 0; buffer = buffer.slice(end + 2)) {
        const data = buffer
          .slice(0, end)
          .split("\n")
          .filter((line) => line.startsWith("data:"))
          .map((line) => line.slice(5).trimStart())
          .join("\n");
        if (data === "[DONE]") return;
        if (data) yield data;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** The error of a refused request: the server's fields as far as they can be read, its `code` among them, with `status`. */
export async function errorOf(response) {
  let message = `the server answered ${response.status} ${response.statusText}`;
  let fields = {};
  try {
    ({ message, ...fields } = (await response.json()).error);
  } catch {
    // It did not come from this server; the status has to do.
  }
  return Object.assign(new Error(message), { code: "", ...fields, status: response.status });
}
