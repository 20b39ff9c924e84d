//! The check of `Origin` and `Host`: which web pages may reach this server through a visitor's browser.
//!
//! A browser sends simple requests to any address for any page, and a page can give its own name the address
//! of this machine (DNS rebinding). A server without keys needs the check most. Invariant: a request with the
//! `Origin` of another page reaches an endpoint only if the operator named that origin. Browsers send no
//! `Origin` with links, images and scripts; these only `GET`, and the page cannot read the answers.

use std::net::IpAddr;

use axum::{
    extract::{Request, State},
    http::{HeaderMap, Method, Uri, header, uri::Authority},
    middleware::Next,
    response::Response,
};

use crate::{
    ApiError, Dialect, Listen, ServerConfig, app::error_response, errors::api_error::shortened,
    models::Models, telemetry::request_id::RequestId,
};

/// Refuses requests of foreign pages and to foreign names.
pub(crate) async fn check_origin(State(models): State<Models>, request: Request, next: Next) -> Response {
    match check(
        models.config(),
        request.method(),
        request.uri(),
        request.headers(),
    ) {
        Ok(()) => next.run(request).await,
        Err(error) => {
            let dialect = Dialect::of_path(request.uri().path());
            let id: RequestId = request.extensions().get().cloned().unwrap_or_default();
            models.count_refusal(&error);
            error_response(&error, dialect, &id)
        }
    }
}

/// Says whether the operator allows an origin. `localhost` allows every port of this machine.
pub(crate) fn is_named(origins: &[String], origin: &str) -> bool {
    origins.iter().any(|named| {
        named == "*"
            || named.eq_ignore_ascii_case(origin)
            || (named.eq_ignore_ascii_case("localhost") && is_of_this_machine(origin))
    })
}

/// Says whether a page comes from this machine, by its name or its own addresses.
fn is_of_this_machine(origin: &str) -> bool {
    let Some(("http" | "https", authority)) = origin.split_once("://") else {
        return false;
    };
    let Ok(authority) = authority.parse::<Authority>() else {
        return false;
    };
    let host = authority.host();
    let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
    host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

fn check(config: &ServerConfig, method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
    let text = |value: &axum::http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    // HTTP/2 has the name in the target, HTTP/1.1 in a header; a proxy may send both.
    let mut hosts: Vec<String> = headers.get_all(header::HOST).iter().map(text).collect();
    hosts.extend(uri.authority().map(|authority| authority.as_str().to_owned()));
    if checks_hosts(config)
        && let Some(host) = hosts
            .iter()
            .find(|host| !is_own_name(host, &config.allowed_hosts))
    {
        return Err(ApiError::ForeignHost {
            host: shortened(host).into_owned(),
        });
    }
    // A preflight request gets an answer without permissions, and reaches no endpoint.
    if *method == Method::OPTIONS && headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD) {
        return Ok(());
    }
    let is_named = |origin: &str| is_named(&config.cors_origins, origin);
    let is_same = |origin: &str| hosts.iter().any(|host| is_origin_of(origin, host));
    match headers
        .get_all(header::ORIGIN)
        .iter()
        .map(text)
        .find(|origin| !is_named(origin) && !is_same(origin))
    {
        Some(origin) => Err(ApiError::ForeignOrigin {
            origin: shortened(&origin).into_owned(),
        }),
        None => Ok(()),
    }
}

/// Names are checked on addresses that only this machine reaches, since there the browser is the way in; elsewhere only
/// if the operator lists them, since only the operator knows the machine's names.
fn checks_hosts(config: &ServerConfig) -> bool {
    match config.listen {
        Listen::Tcp(address) => address.ip().is_loopback() || !config.allowed_hosts.is_empty(),
        #[cfg(unix)]
        Listen::Unix(_) => false,
    }
}

/// Whether a host, perhaps with a port, is one that no foreign page can have: an address, `localhost` or a listed name.
fn is_own_name(host: &str, allowed: &[String]) -> bool {
    let Ok(authority) = host.parse::<Authority>() else {
        return false;
    };
    let name = authority.host();
    let is_address = name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
    let lower = name.to_ascii_lowercase();
    let lower = lower.strip_suffix('.').unwrap_or(&lower);
    is_address
        || lower == "localhost"
        || lower.ends_with(".localhost")
        || allowed
            .iter()
            .any(|named| named == "*" || named.eq_ignore_ascii_case(lower))
}

/// Whether a page of `origin` was loaded from `host`.
fn is_origin_of(origin: &str, host: &str) -> bool {
    let Some((scheme, authority)) = origin.split_once("://") else {
        return false;
    };
    let default_port = match scheme {
        "http" => 80,
        "https" => 443,
        _ => return false,
    };
    let parts = |text: &str| {
        let authority = text.parse::<Authority>().ok()?;
        let port = authority.port_u16().unwrap_or(default_port);
        Some((authority.host().to_ascii_lowercase(), port))
    };
    parts(authority).is_some_and(|own| parts(host) == Some(own))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn verdict(config: &ServerConfig, host: &str, origin: Option<&str>) -> &'static str {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, host.parse().expect("a header value"));
        if let Some(origin) = origin {
            headers.insert(header::ORIGIN, origin.parse().expect("a header value"));
        }
        match check(
            config,
            &Method::POST,
            &Uri::from_static("/v1/completions"),
            &headers,
        ) {
            Ok(()) => "passes",
            Err(error) => error.code(),
        }
    }

    #[test]
    fn a_page_of_another_origin_is_refused_unless_it_is_named() {
        let mut config = ServerConfig::default();
        for (host, origin, expected) in [
            ("localhost:8080", None, "passes"),
            ("localhost:8080", Some("http://localhost:8080"), "passes"),
            ("127.0.0.1", Some("http://127.0.0.1"), "passes"),
            ("127.0.0.1:80", Some("http://127.0.0.1"), "passes"),
            ("[::1]:8080", Some("http://[::1]:8080"), "passes"),
            (
                "localhost:8080",
                Some("http://localhost:3000"),
                "forbidden_origin",
            ),
            ("localhost:8080", Some("https://evil.example"), "forbidden_origin"),
            ("localhost:8080", Some("null"), "forbidden_origin"),
            (
                "localhost:8080",
                Some("file://localhost:8080"),
                "forbidden_origin",
            ),
        ] {
            assert_eq!(verdict(&config, host, origin), expected, "{host} {origin:?}");
        }
        config.cors_origins = vec!["https://a.example".to_owned()];
        assert_eq!(verdict(&config, "localhost", Some("https://a.example")), "passes");
        assert_eq!(
            verdict(&config, "localhost", Some("https://a.example.evil.example")),
            "forbidden_origin"
        );
        config.cors_origins = vec!["*".to_owned()];
        assert_eq!(verdict(&config, "localhost", Some("null")), "passes");
        config.cors_origins = vec!["localhost".to_owned()];
        for (origin, expected) in [
            ("http://localhost", "passes"),
            ("http://LOCALHOST:3000", "passes"),
            ("https://127.0.0.1:3000", "passes"),
            ("http://[::1]:3000", "passes"),
            ("http://localhost.evil.example", "forbidden_origin"),
            ("http://notlocalhost", "forbidden_origin"),
            ("http://10.0.0.7", "forbidden_origin"),
            ("file://localhost", "forbidden_origin"),
            ("localhost", "passes"),
        ] {
            assert_eq!(
                verdict(&config, "a.localhost:8080", Some(origin)),
                expected,
                "{origin}"
            );
        }
    }

    #[test]
    fn a_browser_that_asks_before_it_calls_reaches_no_endpoint_and_is_not_refused() {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, "localhost".parse().expect("a header value"));
        headers.insert(
            header::ORIGIN,
            "https://evil.example".parse().expect("a header value"),
        );
        let config = ServerConfig::default();
        let uri = Uri::from_static("/v1/completions");
        assert!(check(&config, &Method::OPTIONS, &uri, &headers).is_err());
        headers.insert(
            header::ACCESS_CONTROL_REQUEST_METHOD,
            "POST".parse().expect("a header value"),
        );
        assert!(check(&config, &Method::OPTIONS, &uri, &headers).is_ok());
        assert!(check(&config, &Method::POST, &uri, &headers).is_err());
    }

    #[test]
    fn a_foreign_name_of_a_loopback_address_is_refused_unless_it_is_listed() {
        let mut config = ServerConfig::default();
        let rebound = Some("http://evil.example:8080");
        assert_eq!(verdict(&config, "evil.example:8080", rebound), "forbidden_host");
        for own in [
            "localhost",
            "LOCALHOST.:1",
            "a.localhost:8080",
            "127.0.0.1",
            "[::1]",
            "10.0.0.7:1",
        ] {
            assert_eq!(verdict(&config, own, None), "passes", "{own}");
        }
        for foreign in ["localhost.evil.example", "evillocalhost", "", "a b"] {
            assert_eq!(verdict(&config, foreign, None), "forbidden_host", "{foreign}");
        }
        config.allowed_hosts = vec!["models.example".to_owned()];
        assert_eq!(verdict(&config, "Models.Example:8080", None), "passes");
        // On an address for everybody the operator's list decides, if there is one.
        config.listen = Listen::Tcp(([0, 0, 0, 0], 8080).into());
        assert_eq!(verdict(&config, "other.example", None), "forbidden_host");
        config.allowed_hosts.clear();
        assert_eq!(verdict(&config, "other.example", None), "passes");
    }
}
