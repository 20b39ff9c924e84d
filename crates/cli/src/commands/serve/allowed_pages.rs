//! The values of `--cors-origin` and `--allow-host`, in the form in which browsers send them.
//!
//! The server compares whole texts. Invariant: a value that no browser sends is refused or corrected, so a
//! permission never fails silently.

use std::net::IpAddr;

/// Ports that browsers leave out, with their schemes.
const DEFAULT_PORTS: [(&str, &str); 2] = [("http", "80"), ("https", "443")];

/// Reads an origin: `*`, `localhost`, `null`, or a scheme with a host and perhaps a port. A slash at the end and
/// the scheme's own port are dropped, because browsers send neither.
///
/// # Errors
/// Any other text.
pub(super) fn origin(text: &str) -> Result<String, String> {
    let text = text.trim();
    if ["*", "localhost", "null"].contains(&text) {
        return Ok(text.to_owned());
    }
    let Some((scheme, rest)) = text.split_once("://") else {
        let (host, port) = split_port(text);
        return Err(if is_host(host) && port.is_none_or(is_port) {
            format!("an origin begins with a scheme, as in `https://{text}`")
        } else {
            "expected an origin, such as `https://app.example.com`, `localhost` or `*`".to_owned()
        });
    };
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    let (host, port) = split_port(rest);
    if rest.contains(['/', '?', '#']) {
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        return Err(format!("an origin has no path: `{scheme}://{}`", &rest[..end]));
    }
    if host.contains('*') {
        return Err(
            "a part of an origin cannot be left open; name each origin, or allow any with `*`".to_owned(),
        );
    }
    let is_scheme = scheme.starts_with(|char: char| char.is_ascii_alphabetic())
        && scheme
            .chars()
            .all(|char| char.is_ascii_alphanumeric() || "+-.".contains(char));
    if !is_scheme || !is_host(host) {
        return Err("expected a scheme and a host, such as `https://app.example.com`".to_owned());
    }
    let lower = scheme.to_ascii_lowercase();
    match port {
        Some(port) if !is_port(port) => Err(format!(
            "`{port}` is not a port; `localhost` allows every port of this machine"
        )),
        Some(port) if !DEFAULT_PORTS.contains(&(lower.as_str(), port)) => {
            Ok(format!("{scheme}://{host}:{port}"))
        }
        _ => Ok(format!("{scheme}://{host}")),
    }
}

/// Whether a text is the number of a port.
fn is_port(text: &str) -> bool {
    text.parse::<u16>().is_ok()
}

/// Reads a host name or `*`. A dot at the end is dropped, because the server drops it too.
///
/// # Errors
/// A scheme, a port, a path, or a text that is not a name.
pub(super) fn host_name(text: &str) -> Result<String, String> {
    let text = text.trim();
    let rest = text.split_once("://").map_or(text, |(_, rest)| rest);
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (host, _) = split_port(&rest[..end]);
    let host = host.strip_suffix('.').unwrap_or(host);
    if text == "*" {
        return Ok(text.to_owned());
    }
    if !is_host(host) {
        return Err("expected a host name, such as `models.example.com`, or `*` for any".to_owned());
    }
    if host != text.strip_suffix('.').unwrap_or(text) {
        return Err(format!(
            "a host name has no scheme, port or path: `--allow-host {host}`"
        ));
    }
    Ok(host.to_owned())
}

/// Splits a port from a host; the colons of an IPv6 address are not those of a port.
fn split_port(text: &str) -> (&str, Option<&str>) {
    match text.rsplit_once(':') {
        Some((host, port)) if text.parse::<IpAddr>().is_err() && !port.ends_with(']') => (host, Some(port)),
        _ => (text, None),
    }
}

/// Whether a text is a name of ASCII letters, as browsers send names of all scripts, or an address.
fn is_host(text: &str) -> bool {
    let address = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    let is_name = |text: &str| {
        !text.is_empty()
            && text
                .chars()
                .all(|char| char.is_ascii_alphanumeric() || "-_.".contains(char))
    };
    address.unwrap_or(text).parse::<IpAddr>().is_ok() || is_name(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(found: &Result<String, String>, expected: Result<&str, &str>) {
        match (found, expected) {
            (Err(found), Err(part)) => assert!(found.contains(part), "{found}, expected {part}"),
            (found, expected) => {
                let found = found.as_deref().map_err(String::as_str);
                assert_eq!(found, expected);
            }
        }
    }

    #[test]
    fn an_origin_is_read_as_browsers_send_it() {
        for (text, expected) in [
            ("*", Ok("*")),
            ("localhost", Ok("localhost")),
            ("https://foo.example", Ok("https://foo.example")),
            (" https://foo.example/ ", Ok("https://foo.example")),
            ("https://foo.example:443", Ok("https://foo.example")),
            ("http://foo.example:443/", Ok("http://foo.example:443")),
            ("http://[::1]:3000", Ok("http://[::1]:3000")),
            ("http://[::1]", Ok("http://[::1]")),
            ("chrome-extension://abc", Ok("chrome-extension://abc")),
            ("bar", Err("as in `https://bar`")),
            ("foo.example:8080", Err("begins with a scheme")),
            ("", Err("expected an origin")),
            (
                "https://foo.example/page",
                Err("has no path: `https://foo.example`"),
            ),
            ("https://*.example", Err("cannot be left open")),
            ("http://foo.example:*", Err("is not a port")),
            ("http://a@foo.example", Err("a scheme and a host")),
            ("http://", Err("a scheme and a host")),
        ] {
            check(&origin(text), expected);
        }
    }

    #[test]
    fn a_host_is_a_name_alone() {
        for (text, expected) in [
            ("*", Ok("*")),
            ("foo.example", Ok("foo.example")),
            ("foo.example.", Ok("foo.example")),
            ("my_host", Ok("my_host")),
            ("10.0.0.7", Ok("10.0.0.7")),
            ("[::1]", Ok("[::1]")),
            ("http://foo.example/", Err("`--allow-host foo.example`")),
            ("foo.example:8080", Err("`--allow-host foo.example`")),
            ("foo.example/", Err("`--allow-host foo.example`")),
            ("*.example", Err("expected a host name")),
            ("a.example,b.example", Err("expected a host name")),
            ("", Err("expected a host name")),
        ] {
            check(&host_name(text), expected);
        }
    }
}
