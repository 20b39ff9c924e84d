//! [`shown`]: addresses in the form in which they are shown to users.
//!
//! Requests need the complete address. Invariant: neither a user nor a password before the host is shown, nor
//! the query, which may hold a signature.

/// Returns an address for messages.
pub(crate) fn shown(url: &str) -> String {
    without_user(without_query(url))
}

/// Returns an endpoint for messages, even if it is not a valid address: everything up to its last `@` may be
/// a password.
pub(crate) fn without_user(url: &str) -> String {
    let (scheme, rest) = split_scheme(url);
    match rest.rsplit_once('@') {
        Some((_, host)) => format!("{scheme}{host}"),
        None => url.to_owned(),
    }
}

/// Returns an address without its query. The query signs a redirect and is hundreds of characters long.
pub(crate) fn without_query(url: &str) -> &str {
    url.split(['?', '#']).next().unwrap_or_default()
}

/// Returns the scheme, user, host and port of an address.
pub(crate) fn origin(url: &str) -> Option<&str> {
    let start = url.find("://")? + "://".len();
    let end = url[start..]
        .find(['/', '?', '#'])
        .map_or(url.len(), |at| start + at);
    Some(&url[..end])
}

/// Returns the host and port of an address.
pub(crate) fn host(url: &str) -> &str {
    let (_, rest) = split_scheme(origin(url).unwrap_or(url));
    rest.rsplit_once('@').map_or(rest, |(_, host)| host)
}

/// Splits off the scheme, with its separator.
fn split_scheme(url: &str) -> (&str, &str) {
    url.split_at(url.find("://").map_or(0, |at| at + "://".len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_has_scheme_host_and_port() {
        assert_eq!(origin("http://h:80/x?y"), Some("http://h:80"));
        assert_eq!(origin("http://h?x"), Some("http://h"));
        assert_eq!(origin("x"), None);
        assert_ne!(origin("http://h@evil/x"), origin("http://h/x"));
    }

    #[test]
    fn users_and_signatures_are_not_shown() {
        for (url, expected) in [
            ("https://h/a/b", "https://h/a/b"),
            ("https://h:1/a?X-Signature=secret", "https://h:1/a"),
            ("https://user:secret@h:1/a", "https://h:1/a"),
            ("https://user:sec@ret@h", "https://h"),
            ("https://user:sec/ret@h", "https://h"),
            ("user:secret@h", "h"),
        ] {
            assert_eq!(shown(url), expected, "{url}");
        }
        assert_eq!(without_user("https://user:sec?ret@h"), "https://h");
        assert_eq!(host("https://user:sec@ret@h:1/a"), "h:1");
    }
}
