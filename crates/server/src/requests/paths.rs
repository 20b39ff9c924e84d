//! The path of a request as its client wrote it, and the percent escapes of URLs.
//!
//! [`path_forms`](crate::endpoints::path_forms) brings paths to the form that the router knows.

use axum::{Extension, http::Uri};

use crate::errors::api_error::shortened;

/// The path as the client wrote it, where that is another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AskedPath {
    /// The path.
    pub(crate) path: String,
    /// Whether the client left out the `/v1` prefix.
    pub(crate) is_unversioned: bool,
}

impl AskedPath {
    /// The path that an error names: the client's own.
    pub(crate) fn or(asked: Option<Extension<Self>>, uri: &Uri) -> String {
        let path = asked.map_or_else(|| uri.path().to_owned(), |Extension(asked)| asked.path);
        shortened(&path).into_owned()
    }
}

/// Decodes the percent escapes of a URL; invalid escapes do not change.
pub(crate) fn unescaped(text: &str) -> Vec<u8> {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let escaped = (bytes[at] == b'%')
            .then(|| text.get(at + 1..at + 3))
            .flatten()
            .filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        out.push(escaped.unwrap_or(bytes[at]));
        at += if escaped.is_some() { 3 } else { 1 };
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_two_digits() {
        for (text, expected) in [
            ("a%2Fb%20c", &b"a/b c"[..]),
            ("100%", b"100%"),
            ("%+1%4", b"%+1%4"),
            ("%ff\u{e4}", b"\xff\xc3\xa4"),
        ] {
            assert_eq!(unescaped(text), expected, "{text}");
        }
    }
}
