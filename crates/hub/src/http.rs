//! [`Client`]: requests over HTTP, one at a time and blocking.
//!
//! Only this file knows the HTTP library. Invariants: redirects are followed here, so that the token is sent
//! to the endpoint's origin only; the head of a reply is bounded; no wait exceeds the patience.

use std::{
    fmt::Write as _,
    io::{self, Read as _},
    sync::OnceLock,
    time::{Duration, Instant},
};

use ureq::{
    Agent, Body, Error,
    http::{HeaderMap, Response, header::LOCATION},
    tls::{Certificate, RootCerts, TlsConfig},
};

use crate::{
    HubError, HubSettings, HubToken,
    address::{host, origin, shown, without_query},
    retry::Fault,
};

/// Maximum redirects of one request.
const MAX_REDIRECTS: usize = 10;
/// Time limit for an answer that is read into memory, as a multiple of the patience.
const WHOLE_PATIENCES: u32 = 4;
/// Time limit for connecting.
const CONNECT_PATIENCE: Duration = Duration::from_secs(15);
const USER_AGENT: &str = concat!("tokenmill/", env!("CARGO_PKG_VERSION"));

/// Sends requests.
#[derive(Debug)]
pub(crate) struct Client {
    agent: Agent,
    patience: Duration,
    origin: String,
    token: Option<HubToken>,
}

/// The kind of a request.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Ask {
    /// The head of a file, without its body, from the endpoint's own origin.
    Head,
    /// The whole file.
    Whole,
    /// Bytes from the first up to and excluding the second.
    Range(u64, u64),
}

/// A server's answer.
#[derive(Debug)]
pub(crate) struct Reply {
    /// Source of the answer, after all redirects.
    pub(crate) url: String,
    pub(crate) status: u16,
    headers: HeaderMap,
    body: Body,
    patience: Duration,
    /// The etag that the endpoint sent with the redirect to the file.
    pub(crate) linked_etag: Option<String>,
}

impl Client {
    pub(crate) fn new(settings: &HubSettings) -> Result<Self, HubError> {
        settings.check()?;
        let origin = origin(&settings.endpoint).ok_or_else(|| HubError::BadEndpoint {
            endpoint: settings.shown_endpoint(),
        })?;
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .timeout_connect(Some(CONNECT_PATIENCE))
            .timeout_recv_response(Some(settings.patience))
            .timeout_per_read(Some(settings.patience))
            .timeout_per_write(Some(settings.patience))
            .max_idle_connections_per_host(settings.n_connections)
            .user_agent(USER_AGENT)
            // Sizes reported by servers are those of the uncompressed files.
            .accept_encoding("identity")
            .tls_config(TlsConfig::builder().root_certs(roots()).build())
            .build();
        Ok(Self {
            agent: Agent::new_with_config(config),
            patience: settings.patience,
            origin: origin.to_owned(),
            token: settings.token.clone(),
        })
    }

    /// Returns whether requests to the endpoint carry a token.
    pub(crate) fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// Returns the endpoint's host.
    pub(crate) fn host(&self) -> &str {
        host(&self.origin)
    }

    /// Sends a request and follows redirects. [`Ask::Head`] does not follow redirects to another origin: the
    /// endpoint describes the file in the redirect itself.
    pub(crate) fn send(&self, url: &str, ask: Ask) -> Result<Reply, Fault> {
        let mut url = url.to_owned();
        let mut linked_etag = None;
        for _ in 0..=MAX_REDIRECTS {
            let response = self.send_once(&url, ask).map_err(|error| fault(&url, error))?;
            let (head, body) = response.into_parts();
            let reply = Reply {
                url,
                status: head.status.as_u16(),
                headers: head.headers,
                body,
                patience: self.patience,
                linked_etag: linked_etag.take(),
            };
            if !matches!(reply.status, 301 | 302 | 303 | 307 | 308) {
                return Ok(reply);
            }
            let target = self.target(&reply)?;
            let is_own = self.is_own(&target);
            if matches!(ask, Ask::Head) && !is_own {
                return Ok(reply);
            }
            linked_etag = reply.linked_etag.or_else(|| {
                let etag = reply.headers.get("x-linked-etag")?.to_str().ok()?;
                Some(plain_etag(etag).to_owned())
            });
            url = target;
        }
        Err(bad_answer(
            &url,
            format!("it leads through more than {MAX_REDIRECTS} redirects"),
        )
        .into())
    }

    fn send_once(&self, url: &str, ask: Ask) -> Result<Response<Body>, Error> {
        let mut request = match ask {
            Ask::Head => self.agent.head(url),
            Ask::Whole => self.agent.get(url),
            Ask::Range(from, to) => {
                let last = to.saturating_sub(1);
                self.agent
                    .get(url)
                    .header("range", format!("bytes={from}-{last}"))
            }
        };
        if let Some(token) = self.token.as_ref().filter(|_| self.is_own(url)) {
            request = request.header("authorization", format!("Bearer {}", token.text()));
        }
        request.call()
    }

    /// Returns whether an address belongs to the endpoint's origin.
    pub(crate) fn is_own(&self, url: &str) -> bool {
        origin(url).is_some_and(|origin| origin.eq_ignore_ascii_case(&self.origin))
    }

    /// Returns the target of a redirect.
    fn target(&self, reply: &Reply) -> Result<String, HubError> {
        let location = reply.headers.get(LOCATION).and_then(|value| value.to_str().ok());
        let location = location.ok_or_else(|| bad_answer(&reply.url, "a redirect has no address"))?;
        let target = join(&reply.url, location).ok_or_else(|| {
            bad_answer(
                &reply.url,
                format!("it leads to `{}`, which is not a web address", shown(location)),
            )
        })?;
        if is_encrypted(&self.origin) && !is_encrypted(&target) {
            let reason = format!("it leads to {}, which is not encrypted", shown(&target));
            return Err(bad_answer(&reply.url, reason));
        }
        Ok(target)
    }
}

impl Reply {
    /// Returns the host that answered.
    pub(crate) fn host(&self) -> &str {
        host(&self.url)
    }

    /// Returns a header if it is text.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// Returns the etag without its quotes.
    pub(crate) fn etag(&self) -> Option<&str> {
        self.header("x-linked-etag")
            .or_else(|| self.header("etag"))
            .map(plain_etag)
    }

    /// Returns the length of the body from the head.
    pub(crate) fn content_length(&self) -> Option<u64> {
        self.header("content-length")?.trim().parse().ok()
    }

    /// Returns the first byte, the last byte and the size of the file from `Content-Range`.
    pub(crate) fn content_range(&self) -> Option<(u64, u64, Option<u64>)> {
        let (range, total) = self
            .header("content-range")?
            .strip_prefix("bytes ")?
            .split_once('/')?;
        let (first, last) = range.split_once('-')?;
        Some((
            first.trim().parse().ok()?,
            last.trim().parse().ok()?,
            total.trim().parse().ok(),
        ))
    }

    /// Returns how long the server asks to wait before the next request.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        let seconds = self
            .header("retry-after")
            .and_then(|text| text.trim().parse().ok());
        // The Hub's format is `"api";r=0;t=55`.
        let reset = || {
            let mut fields = self.header("ratelimit")?.split([';', ',']);
            fields.find_map(|field| field.trim().strip_prefix("t=")?.parse().ok())
        };
        seconds.or_else(reset).map(Duration::from_secs)
    }

    /// Returns a reader of the body.
    pub(crate) fn into_reader(self) -> impl io::Read {
        self.body.into_reader()
    }

    /// Reads the body, of at most `max_bytes`. A server that keeps sending slowly is abandoned at the time limit.
    pub(crate) fn into_bytes(self, max_bytes: u64) -> Result<Vec<u8>, Fault> {
        let Self {
            url, body, patience, ..
        } = self;
        let deadline = Instant::now() + patience * WHOLE_PATIENCES;
        let mut reader = body.into_with_config().limit(max_bytes).reader();
        let mut bytes = Vec::new();
        let mut part = vec![0; 64 << 10];
        loop {
            match reader.read(&mut part) {
                Ok(0) => return Ok(bytes),
                Ok(n_bytes) => bytes.extend_from_slice(&part[..n_bytes]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    return Err(match Error::from(error) {
                        Error::BodyExceedsLimit(_) => {
                            bad_answer(&url, format!("it has more than {max_bytes} bytes")).into()
                        }
                        error => fault(&url, error),
                    });
                }
            }
            if Instant::now() > deadline {
                let reason = format!(
                    "it takes more than {} seconds",
                    (patience * WHOLE_PATIENCES).as_secs_f32()
                );
                return Err(bad_answer(&url, reason).into());
            }
        }
    }
}

/// Returns the error for an unusable answer.
pub(crate) fn bad_answer(url: &str, reason: impl Into<String>) -> HubError {
    HubError::BadAnswer {
        url: shown(url),
        reason: reason.into(),
    }
}

/// Returns the fault of a connection that broke while a body was read.
pub(crate) fn broken_body(url: &str, error: io::Error) -> Fault {
    fault(url, error.into())
}

/// Returns an etag without quotes and without the mark of a weak one.
pub(crate) fn plain_etag(etag: &str) -> &str {
    etag.trim().trim_start_matches("W/").trim_matches('"')
}

/// Returns the reason why there is no answer, and whether another attempt may succeed.
fn fault(url: &str, error: Error) -> Fault {
    let host = host(url).to_owned();
    let (reason, may_pass) = match error {
        Error::HostNotFound => ("its address is not known".to_owned(), true),
        Error::ConnectionFailed => ("no connection".to_owned(), true),
        Error::Timeout(_) => ("nothing arrived in time".to_owned(), true),
        Error::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            ("the connection ended too early".to_owned(), true)
        }
        Error::Io(error) => (error.to_string(), true),
        Error::Protocol(_) | Error::BodyStalled => {
            ("the answer is not HTTP, or ended too early".to_owned(), true)
        }
        // The library's message contains the whole address.
        Error::BadUri(_) => ("it cannot be part of a request".to_owned(), false),
        error => (error.to_string(), false),
    };
    let error = HubError::NoConnection { host, reason };
    if may_pass {
        Fault::again(error)
    } else {
        Fault::Final(error)
    }
}

/// Returns the certificates that the system trusts, which may include a company's own; Mozilla's if it has
/// none, as in small containers.
fn roots() -> RootCerts {
    static ROOTS: OnceLock<RootCerts> = OnceLock::new();
    let load = || {
        let found = rustls_native_certs::load_native_certs().certs;
        if found.is_empty() {
            return RootCerts::WebPki;
        }
        RootCerts::from(
            found
                .iter()
                .map(|certificate| Certificate::from_der(certificate).to_owned()),
        )
    };
    ROOTS.get_or_init(load).clone()
}

/// Returns whether an address begins with `https://`, in any case.
fn is_encrypted(url: &str) -> bool {
    begins_with(url, "https://")
}

fn begins_with(url: &str, scheme: &str) -> bool {
    url.get(..scheme.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(scheme))
}

/// Resolves a redirect's `location` relative to the page `base`; `None` if it is not a web address.
fn join(base: &str, location: &str) -> Option<String> {
    let origin = origin(base)?;
    if begins_with(location, "http://") || begins_with(location, "https://") {
        Some(location.to_owned())
    } else if location.contains("://") || location.is_empty() {
        None
    } else if let Some(rest) = location.strip_prefix("//") {
        Some(format!("{}//{rest}", &origin[..=origin.find(':')?]))
    } else if location.starts_with('/') {
        Some(format!("{origin}{location}"))
    } else {
        let folder = without_query(base)
            .rsplit_once('/')
            .map_or(base, |(folder, _)| folder);
        Some(format!("{folder}/{location}"))
    }
}

/// Encodes a path or a revision for an address. Slashes are kept only if `keeps_slashes`.
pub(crate) fn encode(text: &str, keeps_slashes: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        let is_plain =
            byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || keeps_slashes && byte == b'/';
        if is_plain {
            out.push(char::from(byte));
        } else {
            write!(out, "%{byte:02X}").expect("writing to a string does not fail");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_lead_to_web_addresses_only() {
        let base = "https://hub.example/a/b?x=1";
        let check = |location: &str, expected: Option<&str>| {
            assert_eq!(join(base, location).as_deref(), expected, "{location}");
        };
        check("https://cdn.example/c", Some("https://cdn.example/c"));
        check("/c?y", Some("https://hub.example/c?y"));
        check("//cdn.example/c", Some("https://cdn.example/c"));
        check("c", Some("https://hub.example/a/c"));
        check("file:///etc/passwd", None);
        check("", None);
    }

    #[test]
    fn paths_are_encoded() {
        assert_eq!(encode("a b/ü#?.gguf", true), "a%20b/%C3%BC%23%3F.gguf");
        assert_eq!(encode("refs/pr/1", false), "refs%2Fpr%2F1");
        assert_eq!(plain_etag("W/\"x\""), "x");
        assert!(is_encrypted("HTTPS://h") && !is_encrypted("HTTP://h"));
    }
}
