//! A small HTTP/1.1 client that shows what is really on the wire: status, headers, chunks as they come.
//!
//! Our own because the tests need half-closed sockets, slow reads and malformed requests, which a client library hides.

use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
};

/// A response, read to its end.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(header, _)| header == name);
        found.map(|(_, value)| value.as_str())
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("a body in UTF-8")
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }
}

/// A connection with a request on its way.
pub(crate) struct Exchange {
    pub(crate) stream: BufReader<TcpStream>,
    is_chunked: bool,
    pending: String,
}

impl Exchange {
    /// Connects and writes `bytes`.
    pub(crate) async fn write(address: &str, bytes: &[u8]) -> Self {
        let mut stream = TcpStream::connect(address).await.expect("the server accepts");
        stream.write_all(bytes).await.expect("the server reads");
        Self {
            stream: BufReader::new(stream),
            is_chunked: false,
            pending: String::new(),
        }
    }

    /// Sends a request that closes the connection after its answer.
    pub(crate) async fn send(
        address: &str,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Self {
        let mut head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n",
            body.len()
        );
        for (name, value) in headers {
            head.extend([name, ": ", value, "\r\n"]);
        }
        head += "\r\n";
        Self::write(address, &[head.as_bytes(), body].concat()).await
    }

    /// Reads the status line and the headers.
    pub(crate) async fn head(&mut self) -> (u16, Vec<(String, String)>) {
        let mut line = String::new();
        self.stream.read_line(&mut line).await.expect("a status line");
        let status = line.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status = status.unwrap_or_else(|| panic!("not a status line: {line:?}"));
        let mut headers = Vec::new();
        loop {
            line.clear();
            self.stream.read_line(&mut line).await.expect("a header");
            let Some((name, value)) = line.trim_end().split_once(':') else {
                break;
            };
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        self.is_chunked = headers
            .iter()
            .any(|(name, value)| name == "transfer-encoding" && value == "chunked");
        (status, headers)
    }

    /// The next chunk of a chunked body; `None` at its proper end.
    async fn chunk(&mut self) -> Option<Vec<u8>> {
        let mut line = String::new();
        self.stream.read_line(&mut line).await.ok()?;
        let length = usize::from_str_radix(line.trim_end(), 16).ok()?;
        let mut bytes = vec![0; length + 2];
        self.stream.read_exact(&mut bytes).await.ok()?;
        bytes.truncate(length);
        (length > 0).then_some(bytes)
    }

    /// The data of the next event; `None` after the last.
    pub(crate) async fn event(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.pending.find("\n\n") {
                let event: String = self.pending.drain(..end + 2).collect();
                let mut data = event.lines().filter_map(|line| line.strip_prefix("data: "));
                if let Some(data) = data.next() {
                    return Some(data.to_owned());
                }
                continue;
            }
            let chunk = self.chunk().await?;
            self.pending += std::str::from_utf8(&chunk).expect("events in UTF-8");
        }
    }

    /// Reads the rest of the response.
    pub(crate) async fn reply(mut self) -> Reply {
        self.next_reply().await
    }

    /// Reads a response, after which another may come.
    pub(crate) async fn next_reply(&mut self) -> Reply {
        let (status, headers) = self.head().await;
        let mut body = Vec::new();
        if self.is_chunked {
            while let Some(chunk) = self.chunk().await {
                body.extend(chunk);
            }
        } else {
            let length = headers.iter().find(|(name, _)| name == "content-length");
            let length = length.map_or(0, |(_, value)| value.parse().expect("a length"));
            body.resize(length, 0);
            self.stream.read_exact(&mut body).await.expect("the whole body");
        }
        Reply {
            status,
            headers,
            body,
        }
    }
}

/// Joins the text of streamed chat chunks, one string for each choice, and checks that the stream ends as it should.
pub(crate) async fn read_stream(mut exchange: Exchange, n: usize, text_of: fn(&Value) -> &Value) -> Streamed {
    let (status, headers) = exchange.head().await;
    assert_eq!(status, 200);
    assert!(
        headers
            .iter()
            .any(|(name, value)| name == "content-type" && value == "text/event-stream")
    );
    let mut streamed = Streamed {
        texts: vec![String::new(); n],
        reasons: vec![None; n],
        chunks: Vec::new(),
    };
    while let Some(data) = exchange.event().await {
        if data == "[DONE]" {
            assert_eq!(exchange.event().await, None, "nothing follows the end mark");
            return streamed;
        }
        let chunk: Value = serde_json::from_str(&data).expect("a chunk");
        for choice in chunk["choices"].as_array().into_iter().flatten() {
            let index = choice["index"].as_u64().expect("an index") as usize;
            streamed.texts[index] += text_of(choice).as_str().unwrap_or_default();
            if let Some(reason) = choice["finish_reason"].as_str() {
                let before = streamed.reasons[index].replace(reason.to_owned());
                assert_eq!(before, None, "a choice ends once");
            }
        }
        streamed.chunks.push(chunk);
    }
    panic!("the stream was cut: {streamed:?}");
}

/// The contents of a stream.
#[derive(Debug)]
pub(crate) struct Streamed {
    pub(crate) texts: Vec<String>,
    pub(crate) reasons: Vec<Option<String>>,
    pub(crate) chunks: Vec<Value>,
}
