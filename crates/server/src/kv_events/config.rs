//! [`KvEventsConfig`]: where the events of the KV cache are published, in the form of vLLM's
//! `--kv-events-config`.
//!
//! It is read before there is a model. Invariant: an unknown key and a value that cannot be obeyed are
//! refused by name.

use std::fmt;
#[cfg(unix)]
use std::path::PathBuf;

use serde::Deserialize;

/// Most messages that one setting may ask for.
const MAX_MESSAGES: usize = 1 << 20;

/// Where and how the events of the KV cache are published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvEventsConfig {
    /// Where subscribers are: the socket that publishes.
    pub endpoint: Endpoint,
    /// Where batches can be requested again.
    pub replay_endpoint: Option<Endpoint>,
    /// Batches that are kept for that.
    pub buffer_steps: usize,
    /// Messages that wait for a slow subscriber; it misses the rest.
    pub hwm: usize,
    /// Batches that wait for the publisher.
    pub max_queue_size: usize,
    /// The first frame of each message.
    pub topic: String,
    /// How events are written.
    pub encoding: EventEncoding,
}

/// How events are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EventEncoding {
    /// As maps, with a name for each value: vLLM since the middle of 2026.
    #[default]
    Map,
    /// As arrays: vLLM before.
    Array,
}

/// A ZeroMQ address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// Waits for connections on this address, `HOST:PORT`.
    Bind(String),
    /// Connects to this address, `HOST:PORT`.
    Connect(String),
    /// Waits for connections on a UNIX socket.
    #[cfg(unix)]
    BindUnix(PathBuf),
}

/// An error in a configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KvEventsError {
    /// It is not a JSON object with the known keys.
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    /// A value cannot be obeyed.
    #[error("`{key}`: {reason}")]
    Value {
        /// The key.
        key: &'static str,
        /// Why not.
        reason: String,
    },
}

/// The keys of vLLM, and `encoding`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Keys {
    enable_kv_cache_events: bool,
    #[serde(default)]
    publisher: Option<String>,
    #[serde(default)]
    endpoint: Option<String>,
    #[serde(default)]
    replay_endpoint: Option<String>,
    #[serde(default)]
    buffer_steps: Option<usize>,
    #[serde(default)]
    hwm: Option<usize>,
    #[serde(default)]
    max_queue_size: Option<usize>,
    #[serde(default)]
    topic: String,
    #[serde(default)]
    encoding: EventEncoding,
}

impl KvEventsConfig {
    /// Reads a configuration; `None` where it says that nothing is published.
    ///
    /// # Errors
    /// [`KvEventsError`].
    pub fn from_json(text: &str) -> Result<Option<Self>, KvEventsError> {
        let keys: Keys = serde_json::from_str(text)?;
        let is_published = match keys.publisher.as_deref() {
            None | Some("zmq") => keys.enable_kv_cache_events,
            Some("null") => false,
            Some(other) => {
                return Err(KvEventsError::Value {
                    key: "publisher",
                    reason: format!("`{other}` is not known; there is `zmq`, and `null` for none"),
                });
            }
        };
        let endpoint = keys.endpoint.as_deref().unwrap_or("tcp://*:5557");
        let config = Self {
            endpoint: Endpoint::parse("endpoint", endpoint)?,
            replay_endpoint: (keys.replay_endpoint.as_deref())
                .map(|text| Ok::<_, KvEventsError>(Endpoint::parse("replay_endpoint", text)?.bound()))
                .transpose()?,
            buffer_steps: messages("buffer_steps", keys.buffer_steps, 10_000)?,
            hwm: messages("hwm", keys.hwm, 100_000)?,
            max_queue_size: messages("max_queue_size", keys.max_queue_size, 100_000)?,
            topic: keys.topic,
            encoding: keys.encoding,
        };
        Ok(is_published.then_some(config))
    }
}

/// A count of messages.
fn messages(key: &'static str, value: Option<usize>, default: usize) -> Result<usize, KvEventsError> {
    match value {
        None => Ok(default),
        Some(n_messages) if (1..=MAX_MESSAGES).contains(&n_messages) => Ok(n_messages),
        Some(n_messages) => Err(KvEventsError::Value {
            key,
            reason: format!("{n_messages} is not between 1 and {MAX_MESSAGES}"),
        }),
    }
}

impl Endpoint {
    /// Reads an address. As in vLLM, one with `*` or `::` and one of a UNIX socket is waited on, any other connected to.
    fn parse(key: &'static str, text: &str) -> Result<Self, KvEventsError> {
        let refused = |reason: &str| KvEventsError::Value {
            key,
            reason: format!("`{text}` {reason}"),
        };
        #[cfg(unix)]
        if let Some(path) = text.strip_prefix("ipc://") {
            if path.is_empty() {
                return Err(refused("has no path"));
            }
            return Ok(Self::BindUnix(PathBuf::from(path)));
        }
        let Some(address) = text.strip_prefix("tcp://") else {
            return Err(refused(
                "is not known; write `tcp://*:PORT`, `tcp://HOST:PORT` or `ipc://PATH`",
            ));
        };
        let (host, port) = address.rsplit_once(':').ok_or_else(|| refused("has no port"))?;
        port.parse::<u16>().map_err(|_| refused("has no valid port"))?;
        if host.is_empty() {
            return Err(refused("has no host"));
        }
        Ok(if host == "*" {
            Self::Bind(format!("0.0.0.0:{port}"))
        } else if host.contains("::") {
            Self::Bind(address.to_owned())
        } else {
            Self::Connect(address.to_owned())
        })
    }

    /// The same address, waited on.
    fn bound(self) -> Self {
        match self {
            Self::Connect(address) => Self::Bind(address),
            bound => bound,
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bind(address) | Self::Connect(address) => write!(formatter, "tcp://{address}"),
            #[cfg(unix)]
            Self::BindUnix(path) => write!(formatter, "ipc://{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_vllm_are_understood() {
        let text = r#"{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://gateway:5557", "topic": "kv@pod@demo",
            "replay_endpoint": "tcp://127.0.0.1:5558", "buffer_steps": 7, "hwm": 8, "max_queue_size": 9}"#;
        let expected = KvEventsConfig {
            endpoint: Endpoint::Connect("gateway:5557".to_owned()),
            replay_endpoint: Some(Endpoint::Bind("127.0.0.1:5558".to_owned())),
            buffer_steps: 7,
            hwm: 8,
            max_queue_size: 9,
            topic: "kv@pod@demo".to_owned(),
            encoding: EventEncoding::Map,
        };
        assert_eq!(KvEventsConfig::from_json(text).unwrap(), Some(expected));
        let plain = KvEventsConfig::from_json(r#"{"enable_kv_cache_events": true}"#)
            .unwrap()
            .unwrap();
        assert_eq!(plain.endpoint, Endpoint::Bind("0.0.0.0:5557".to_owned()));
        for off in [
            r#"{"enable_kv_cache_events": false}"#,
            r#"{"enable_kv_cache_events": true, "publisher": "null"}"#,
        ] {
            assert_eq!(KvEventsConfig::from_json(off).unwrap(), None, "{off}");
        }
    }

    #[test]
    fn what_cannot_be_obeyed_is_refused_by_name() {
        for (more, name) in [
            (r#""endpoint": "inproc://x""#, "endpoint"),
            (r#""endpoint": "tcp://*""#, "endpoint"),
            (r#""endpoint": "tcp://*:x""#, "endpoint"),
            (r#""replay_endpoint": "tcp://:1""#, "replay_endpoint"),
            (r#""publisher": "kafka""#, "publisher"),
            (r#""hwm": 0"#, "hwm"),
            (r#""buffer_steps": 99999999"#, "buffer_steps"),
            (r#""max_queue_size": -1"#, "-1"),
            (r#""port": 1"#, "port"),
        ] {
            let text = format!("{{\"enable_kv_cache_events\": true, {more}}}");
            let error = KvEventsConfig::from_json(&text).unwrap_err().to_string();
            assert!(error.contains(name), "{more}: {error}");
        }
        let error = KvEventsConfig::from_json("{}").unwrap_err().to_string();
        assert!(error.contains("enable_kv_cache_events"), "{error}");
    }
}
