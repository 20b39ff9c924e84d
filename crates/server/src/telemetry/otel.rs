//! [`Traces`]: every request as an OpenTelemetry span, sent to a collector by OTLP over HTTP. Behind the feature `otel`.
//!
//! The span is made from the one log event of a request, so that log and trace cannot disagree and the request path knows
//! nothing of tracing back ends. It continues the trace that the client's `traceparent` names. The SDK reads the standard
//! variables (`OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_SERVICE_NAME`, `OTEL_TRACES_SAMPLER`, ...). Invariant: exporting waits
//! on a thread of its own; a slow or absent collector costs spans, never requests.

use std::{
    collections::HashMap,
    fmt,
    time::{Duration, SystemTime},
};

use axum::body::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{Request, Response, client::conn::http1};
use hyper_util::rt::TokioIo;
use opentelemetry::{
    KeyValue,
    propagation::TextMapPropagator as _,
    trace::{Span as _, SpanKind, Status, Tracer as _, TracerProvider as _},
};
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::{
    Resource,
    propagation::TraceContextPropagator,
    trace::{SdkTracer, SdkTracerProvider},
};
use tokio::{net::TcpStream, runtime::Handle};
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{Layer, layer::Context};

use crate::telemetry::request_log::TARGET;

/// Longest wait for a collector to take a batch of spans.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(10);

/// The way of spans to a collector. Dropping it loses unsent spans; [`Traces::end`] sends them.
#[derive(Clone, Debug)]
pub struct Traces {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
}

impl Traces {
    /// Begins to export to where the environment says. `runtime` carries the exporter's connections.
    ///
    /// # Errors
    /// An endpoint that is not an address, or another variable that the SDK cannot read.
    pub fn begin(runtime: Handle) -> Result<Self, ExporterBuildError> {
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(Collector { runtime });
        Ok(Self::through(exporter.build()?))
    }

    /// Begins to export to `endpoint`, a whole address such as `http://127.0.0.1:4318/v1/traces`.
    ///
    /// # Errors
    /// As [`Traces::begin`].
    pub fn begin_at(endpoint: &str, runtime: Handle) -> Result<Self, ExporterBuildError> {
        let exporter = SpanExporter::builder()
            .with_http()
            .with_endpoint(endpoint)
            .with_http_client(Collector { runtime });
        Ok(Self::through(exporter.build()?))
    }

    fn through(exporter: SpanExporter) -> Self {
        let mut resource = Resource::builder();
        if std::env::var_os("OTEL_SERVICE_NAME").is_none() {
            resource = resource.with_service_name("tokenmill");
        }
        let provider = SdkTracerProvider::builder()
            .with_resource(resource.build())
            .with_batch_exporter(exporter)
            .build();
        let tracer = provider.tracer("tokenmill-server");
        Self { provider, tracer }
    }

    /// The layer that sees the requests; part of the program's subscriber.
    pub fn layer(&self) -> RequestSpans {
        RequestSpans {
            tracer: self.tracer.clone(),
            propagator: TraceContextPropagator::new(),
        }
    }

    /// Sends unsent spans and ends. Blocks for at most a few seconds; the runtime must still run.
    pub fn end(&self) {
        if let Err(error) = self.provider.shutdown() {
            tracing::warn!(%error, "some spans were not sent");
        }
    }
}

/// Turns the log event of a request into a span.
#[derive(Debug)]
pub struct RequestSpans {
    tracer: SdkTracer,
    propagator: TraceContextPropagator,
}

impl<S: Subscriber> Layer<S> for RequestSpans {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if event.metadata().target() != TARGET {
            return;
        }
        let end = SystemTime::now();
        let mut request = RequestFields::default();
        event.record(&mut request);
        let parent = self.propagator.extract(&HashMap::from([(
            "traceparent".to_owned(),
            request.traceparent.unwrap_or_default(),
        )]));
        let took = Duration::try_from_secs_f64(request.duration_ms / 1e3).unwrap_or_default();
        let builder = self
            .tracer
            .span_builder(format!("{} {}", request.method, request.path))
            .with_kind(SpanKind::Server)
            .with_start_time(end - took)
            .with_attributes(request.attributes);
        let mut span = self.tracer.build_with_context(builder, &parent);
        if request.status >= 500 {
            span.set_status(Status::error(request.error.unwrap_or_default()));
        }
        span.end_with_timestamp(end);
    }
}

/// The fields of a request's event, under the names of OpenTelemetry's conventions for HTTP and generative models.
#[derive(Debug, Default)]
struct RequestFields {
    method: String,
    path: String,
    status: u64,
    duration_ms: f64,
    error: Option<String>,
    traceparent: Option<String>,
    attributes: Vec<KeyValue>,
}

impl RequestFields {
    fn attribute(&mut self, name: &'static str, value: impl Into<opentelemetry::Value>) {
        self.attributes.push(KeyValue::new(name, value));
    }
}

impl Visit for RequestFields {
    fn record_f64(&mut self, field: &Field, value: f64) {
        if field.name() == "duration_ms" {
            self.duration_ms = value;
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        let name = match field.name() {
            "status" => {
                self.status = value;
                "http.response.status_code"
            }
            "prompt_tokens" => "gen_ai.usage.input_tokens",
            "completion_tokens" => "gen_ai.usage.output_tokens",
            "cached_tokens" => "tokenmill.cached_tokens",
            _ => return,
        };
        self.attribute(name, i64::try_from(value).unwrap_or(i64::MAX));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        if field.name() == "disconnected" {
            self.attribute("tokenmill.disconnected", value);
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        let name = match field.name() {
            "traceparent" => {
                self.traceparent = Some(value.to_owned());
                return;
            }
            "path" => {
                value.clone_into(&mut self.path);
                "url.path"
            }
            "error" => {
                self.error = Some(value.to_owned());
                "error.type"
            }
            "request_id" => "tokenmill.request_id",
            "cache_miss" => "tokenmill.cache_miss",
            _ => return,
        };
        self.attribute(name, value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "method" {
            self.method = format!("{value:?}");
            self.attribute("http.request.method", self.method.clone());
        }
    }
}

/// A collector, reached over plain HTTP: one on this machine or in its private network, which adds TLS and keys where they are needed.
#[derive(Debug)]
struct Collector {
    runtime: Handle,
}

#[async_trait::async_trait]
impl HttpClient for Collector {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        // The caller's thread has no runtime of its own; not even the timer may be made on it.
        let sending = self
            .runtime
            .spawn(async { tokio::time::timeout(EXPORT_TIMEOUT, send(request)).await });
        sending.await??
    }
}

async fn send(request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
    let uri = request.uri();
    if uri.scheme_str() != Some("http") {
        return Err(format!("`{uri}` is not an http:// address").into());
    }
    let authority = uri
        .authority()
        .ok_or("the collector's address has no host")?
        .clone();
    let stream = TcpStream::connect((
        authority.host().trim_matches(['[', ']']),
        authority.port_u16().unwrap_or(80),
    ))
    .await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // Its end shows in the response.
    tokio::spawn(connection);
    let (mut parts, body) = request.into_parts();
    parts.uri = parts
        .uri
        .path_and_query()
        .map_or("/", |path| path.as_str())
        .parse()?;
    parts.headers.insert("host", authority.as_str().parse()?);
    let response = sender
        .send_request(Request::from_parts(parts, Full::new(body)))
        .await?;
    let (parts, body) = response.into_parts();
    Ok(Response::from_parts(parts, body.collect().await?.to_bytes()))
}
