//! [`Endpoint`]: one row of the table of endpoints, and the queries of the rest of the server on the table.
//!
//! [`ENDPOINTS`] only lists the rows. Invariant: routes, keys, the levels of log lines, `/openapi.json` and
//! `docs/api-fields.md` come from the rows alone.

use std::{future::Future, sync::Arc};

use axum::{
    handler::Handler,
    response::Response,
    routing::{MethodFilter, MethodRouter, any, on},
};

use super::{
    ENDPOINTS,
    frame::{endpoint, framed_as},
};
use crate::{
    ApiError, App, Dialect,
    app::Call,
    models::{Models, Role},
    requests::request_table::RequestTable,
};

/// The methods that an endpoint answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Get,
    Post,
    Delete,
    /// All, to refuse them in the same words.
    Any,
}

impl Verb {
    /// Returns its name as HTTP writes it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Delete => "DELETE",
            Self::Any => "any method",
        }
    }

    /// Returns the filter of a method that is not [`Self::Any`].
    fn filter(self) -> Option<MethodFilter> {
        match self {
            Self::Get => Some(MethodFilter::GET),
            Self::Post => Some(MethodFilter::POST),
            Self::Delete => Some(MethodFilter::DELETE),
            Self::Any => None,
        }
    }
}

/// Makes the route of a row for a server of these models.
type Route = fn(&'static Endpoint, &Models) -> MethodRouter<Models>;

/// An endpoint: its paths, its clients, its fields, and the function that answers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Endpoint {
    pub(crate) verb: Verb,
    /// The path, with the router's placeholders.
    pub(crate) path: &'static str,
    /// Other paths to the same function.
    pub(crate) aliases: &'static [&'static str],
    /// The form of its errors.
    pub(crate) dialect: Dialect,
    /// The kind of model that answers a request without a model name.
    pub(crate) role: Role,
    /// Fields of its body, where it is an object.
    pub(crate) body: Option<RequestTable>,
    /// One line for `/openapi.json`; empty for a row that the description leaves out.
    pub(crate) summary: &'static str,
    /// Whether a request needs one of the server's keys.
    pub(crate) needs_key: bool,
    /// For a probe: its answer while the only model loads. Supervisors and load balancers ask it, so a full server answers it as well.
    pub(crate) while_loading: Option<fn() -> Response>,
    /// Whether its log lines would be noise at the level of requests.
    pub(crate) is_quiet: bool,
    route: Route,
}

/// Starts a row of an endpoint that needs a key and no model of a special kind.
pub(super) const fn row(verb: Verb, dialect: Dialect, path: &'static str, route: Route) -> Endpoint {
    Endpoint {
        verb,
        path,
        aliases: &[],
        dialect,
        role: Role::Chat,
        body: None,
        summary: "",
        needs_key: true,
        while_loading: None,
        is_quiet: false,
        route,
    }
}

impl Endpoint {
    /// Adds other paths to the same function.
    pub(crate) const fn also_at(mut self, aliases: &'static [&'static str]) -> Self {
        self.aliases = aliases;
        self
    }

    /// Sets the kind of model that answers a request without a model name.
    pub(crate) const fn for_role(mut self, role: Role) -> Self {
        self.role = role;
        self
    }

    /// Sets the fields of the body.
    pub(crate) const fn reads(mut self, body: RequestTable) -> Self {
        self.body = Some(body);
        self
    }

    /// Sets the summary.
    pub(crate) const fn says(mut self, summary: &'static str) -> Self {
        self.summary = summary;
        self
    }

    /// Lets requests in without a key: the endpoint holds no secrets.
    pub(crate) const fn without_key(mut self) -> Self {
        self.needs_key = false;
        self
    }

    /// Logs requests at the level of debugging.
    pub(crate) const fn quiet(mut self) -> Self {
        self.is_quiet = true;
        self
    }

    /// Marks a probe: it needs no key, is logged at the level of debugging, and is answered while the server is full or the model loads.
    pub(crate) const fn probe(mut self, while_loading: fn() -> Response) -> Self {
        self.while_loading = Some(while_loading);
        self.without_key().quiet()
    }

    /// Lists its paths, the official one first.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &'static str> {
        std::iter::once(self.path).chain(self.aliases.iter().copied())
    }

    /// Makes its route.
    pub(crate) fn route(&'static self, models: &Models) -> MethodRouter<Models> {
        (self.route)(self, models)
    }

    /// Routes to a handler of JSON bodies that answers with a loaded model.
    pub(super) fn with_model<F, Fut>(&'static self, handler: F) -> MethodRouter<Models>
    where
        F: Fn(Arc<App>, Call) -> Fut + Clone + Send + Sync + 'static,
        Fut: Future<Output = Result<Response, ApiError>> + Send,
    {
        endpoint(self.method(), self.dialect, self.role, handler)
    }

    /// Routes to a handler of JSON bodies that no model has to be loaded for.
    pub(super) fn without_model<F, Fut>(&'static self, handler: F) -> MethodRouter<Models>
    where
        F: Fn(Models, Call) -> Fut + Clone + Send + Sync + 'static,
        Fut: Future<Output = Result<Response, ApiError>> + Send,
    {
        framed_as(self.method(), self.dialect, handler)
    }

    /// Returns the method of a row whose handler reads a body.
    fn method(&self) -> MethodFilter {
        self.verb.filter().expect("a row with a body has one method")
    }

    /// Routes to a handler that reads the request itself.
    pub(super) fn plain<H, T>(&self, handler: H) -> MethodRouter<Models>
    where
        H: Handler<T, Models>,
        T: 'static,
    {
        match self.verb.filter() {
            Some(filter) => on(filter, handler),
            None => any(handler),
        }
    }

    /// Says whether a request's path leads here.
    fn is_at(&self, path: &str) -> bool {
        self.paths().any(|own| match own.split_once('{') {
            Some((before, _)) => path.starts_with(before),
            None => path == own,
        })
    }
}

/// Says whether supervisors and load balancers probe this path.
pub(crate) fn is_probe(path: &str) -> bool {
    probe_while_loading(path).is_some()
}

/// Returns the function that answers a probe while the only model loads; `None` for other paths.
pub(crate) fn probe_while_loading(path: &str) -> Option<fn() -> Response> {
    (ENDPOINTS.iter())
        .filter(|row| row.is_at(path))
        .find_map(|row| row.while_loading)
}

/// Says whether a log line for this path would be noise: probes ask all the time, and each visit to the page loads all its files.
pub(crate) fn is_quiet(path: &str) -> bool {
    ENDPOINTS.iter().any(|row| row.is_quiet && row.is_at(path))
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        path::{Path, PathBuf},
    };

    use axum::{
        Router,
        body::Body,
        extract::Request,
        http::{Method, StatusCode},
        response::IntoResponse as _,
    };
    use tokenmill::Model;
    use tower::ServiceExt as _;

    use super::*;
    use crate::{ModelLimits, ModelLoader, ModelSpec, ServerConfig, models::Measured};

    /// A model that cannot be loaded.
    #[derive(Debug)]
    struct Absent;

    impl ModelLoader for Absent {
        fn measure(&self) -> Result<Measured, String> {
            Err("it is not there".to_owned())
        }

        fn load(&self, _is_quiet: bool) -> Result<Model, String> {
            Err("it is not there".to_owned())
        }
    }

    #[tokio::test]
    async fn a_route_has_the_method_of_its_row() {
        static WITH_MODEL: Endpoint = row(Verb::Delete, Dialect::OpenAi, "/x", |row, _| {
            row.with_model(|_: Arc<App>, _: Call| async { Ok(StatusCode::OK.into_response()) })
        });
        static WITHOUT_MODEL: Endpoint = row(Verb::Get, Dialect::OpenAi, "/x", |row, _| {
            row.without_model(|_: Models, _: Call| async { Ok(StatusCode::OK.into_response()) })
        });
        static PLAIN: Endpoint = row(Verb::Post, Dialect::OpenAi, "/x", |row, _| {
            row.plain(|| async { StatusCode::OK })
        });
        let specs = vec![ModelSpec::new("absent", Absent)];
        let models = Models::new(specs, ModelLimits::default(), ServerConfig::default());
        let models = models.expect("it has a name");
        for row in [&WITH_MODEL, &WITHOUT_MODEL, &PLAIN] {
            let router = Router::new().route(row.path, row.route(&models));
            for method in [Method::GET, Method::POST, Method::DELETE] {
                let mut request = Request::new(Body::empty());
                *request.method_mut() = method.clone();
                *request.uri_mut() = "/x".parse().expect("a path");
                let answered = router.clone().with_state(models.clone()).oneshot(request).await;
                let status = answered.expect("a router answers").status();
                let is_taken = status != StatusCode::METHOD_NOT_ALLOWED;
                assert_eq!(
                    is_taken,
                    method.as_str() == row.verb.name(),
                    "{row:?} {method}: {status}"
                );
            }
        }
    }

    #[test]
    fn paths_have_the_dialect_of_their_row() {
        for row in ENDPOINTS {
            for path in row.paths() {
                assert_eq!(Dialect::of_path(path), row.dialect, "{path}");
            }
        }
    }

    /// Where the newest endpoint stands. The recipe of CONTRIBUTING promises two files.
    const NEWEST: (&str, [&str; 2]) = ("score", ["endpoints/mod.rs", "endpoints/score.rs"]);

    /// Lists the files below a folder whose product code says one of the words.
    fn files_that_say(folder: &Path, words: &[String], found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).expect("the sources are there") {
            let path = entry.expect("the folder can be read").path();
            if path.is_dir() {
                files_that_say(&path, words, found);
                continue;
            }
            let text = fs::read_to_string(&path).expect("a source is text");
            let product = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
            if words.iter().any(|word| product.contains(word.as_str())) {
                found.push(path);
            }
        }
    }

    #[test]
    fn the_newest_endpoint_stands_in_two_files() {
        let (name, expected) = NEWEST;
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let words = [
            format!("\"/v1/{name}\""),
            format!("/v1/{name}`"),
            format!("mod {name};"),
            format!("{name}::"),
        ];
        let mut found = Vec::new();
        files_that_say(&source, &words, &mut found);
        found.sort();
        let expected = expected.map(|file| source.join(file));
        assert_eq!(found, expected, "an endpoint is a row of the table and a file");
        assert!(ENDPOINTS.iter().any(|row| row.path == format!("/v1/{name}")));
    }

    #[test]
    fn only_probes_and_the_page_are_quiet_or_without_a_key() {
        let listed = |holds: fn(&Endpoint) -> bool| -> Vec<&str> {
            let rows = ENDPOINTS.iter().filter(|row| holds(row));
            rows.flat_map(Endpoint::paths).collect()
        };
        let probes = ["/livez", "/readyz", "/health", "/v1/health"];
        assert_eq!(listed(|row| row.while_loading.is_some()), probes);
        assert_eq!(
            listed(|row| !row.needs_key),
            [&probes[..], &["/openapi.json", "/", "/web/{name}"]].concat()
        );
        for (path, expected) in [
            ("/metrics", true),
            ("/web/main.js", true),
            ("/", true),
            ("/v1/health", true),
            ("/openapi.json", false),
            ("/v1/models", false),
            ("/web", false),
        ] {
            assert_eq!(is_quiet(path), expected, "{path}");
        }
    }

    #[test]
    fn a_request_without_a_name_is_for_the_model_of_its_kind() {
        for (path, role) in [
            ("/v1/embeddings", Role::Embedding),
            ("/embedding", Role::Embedding),
            ("/api/embed", Role::Embedding),
            ("/api/embeddings", Role::Embedding),
            ("/v1/score", Role::Rank),
            ("/v1/rerank", Role::Rank),
            ("/v2/rerank", Role::Rank),
            ("/v1/reranking", Role::Rank),
            ("/v1/systemone", Role::Decision),
            ("/v1/decisions", Role::Decision),
            ("/v1/chat/completions", Role::Chat),
            ("/tokenize", Role::Chat),
        ] {
            let row = ENDPOINTS.iter().find(|row| row.paths().any(|own| own == path));
            assert_eq!(row.map(|row| row.role), Some(role), "{path}");
        }
    }
}
