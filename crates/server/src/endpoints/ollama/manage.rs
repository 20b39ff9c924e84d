//! Answers Ollama's clients that change which models there are: `/api/pull`, `/api/delete`, and the paths that refuse.
//!
//! Separate from what describes models. Invariants: only the folder of models changes, and only where the operator allows it; few
//! downloads run at a time; a download ends when its client goes away, and what has arrived stays for the next one.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use axum::{
    Extension, Json,
    body::Body,
    extract::State,
    http::{StatusCode, Uri, header},
    response::{IntoResponse, Response},
};
use futures_util::stream;
use serde_json::{Value, json};
use tokio::{sync::mpsc, task::spawn_blocking};

use crate::{
    ApiError, Dialect, Models,
    app::{Call, error_response},
    error::shortened,
    model_names::tagged,
    models::{ModelFolder, PullWatch, Role},
    ollama::embed::{DELETE_FIELDS, DeleteRequest, PULL_FIELDS, PullRequest},
    request_id::RequestId,
};

/// Shortest time between two lines about one download.
const LINE_INTERVAL: Duration = Duration::from_millis(100);

/// Lines that wait for a slow client; further progress is left out.
const MAX_LINES: usize = 16;

/// Longest name of a model to download: names are logged.
const MAX_NAME_BYTES: usize = 512;

/// Longest wait until a folder that has changed is looked through.
const LOOK_PATIENCE: Duration = Duration::from_secs(5);

/// Answers `/api/pull`: a served model is there, and another is downloaded into the folder of models if the operator allows it.
pub(crate) async fn pull(models: Models, mut call: Call) -> Result<Response, ApiError> {
    let path = shortened(call.uri.path()).into_owned();
    let request: PullRequest = call.read(PULL_FIELDS)?;
    let name = request.name().unwrap_or_default().to_owned();
    let is_whole = request.stream == Some(false);
    if models.has(&name) {
        return Ok(if is_whole {
            Json(success()).into_response()
        } else {
            let lines = [json!({ "status": "pulling manifest" }), success()];
            lines_of(lines.map(|line| line.to_string() + "\n").concat().into())
        });
    }
    let Some(folder) = models.managed_folder() else {
        return Err(ApiError::NotImplemented {
            path,
            reason: unmanaged_reason(&models),
        });
    };
    if name.is_empty() {
        return Err(ApiError::invalid("model", "this field is required"));
    }
    if name.len() > MAX_NAME_BYTES {
        let reason = format!("the name has more than {MAX_NAME_BYTES} bytes");
        return Err(ApiError::invalid("model", reason));
    }
    let Some(place) = models.place_to_pull() else {
        return Err(ApiError::NotReady {
            reason: "it downloads as many models as it may",
        });
    };
    let (lines, mut received) = mpsc::channel(MAX_LINES);
    tracing::info!(model = name, "downloading for a client");
    tokio::spawn(async move {
        let last = download(folder, name, lines.clone(), &models).await;
        drop(place);
        // A client that went away reads no end.
        let _ = lines.send(last).await;
    });
    if is_whole {
        let mut last = Value::Null;
        while let Some(line) = received.recv().await {
            last = line;
        }
        return match last["error"].as_str() {
            Some(reason) => Err(ApiError::invalid("model", reason)),
            None => Ok(Json(last).into_response()),
        };
    }
    let lines = stream::unfold(received, |mut received| async {
        let line: Value = received.recv().await?;
        Some((Ok::<_, Infallible>(line.to_string() + "\n"), received))
    });
    Ok(lines_of(Body::from_stream(lines)))
}

/// Downloads a model and has the folder looked through. Returns the last line.
async fn download(
    folder: Arc<dyn ModelFolder>,
    name: String,
    lines: mpsc::Sender<Value>,
    models: &Models,
) -> Value {
    let asked = name.clone();
    let pulled = spawn_blocking(move || {
        let watch = PullLines {
            name: name.clone(),
            to_client: lines,
            last: Mutex::new(None),
        };
        watch.status("pulling manifest");
        let manager = folder.manager().ok_or("the folder is not managed")?;
        manager.pull(&name, &watch)
    });
    let pulled = pulled.await.unwrap_or_else(|_| Err("it panicked".to_owned()));
    match pulled {
        Ok(()) => {
            models.look_anew(LOOK_PATIENCE).await;
            tracing::info!(model = asked, "downloaded for a client");
            success()
        }
        Err(reason) => {
            tracing::warn!(model = asked, "not downloaded: {reason}");
            json!({ "error": reason })
        }
    }
}

/// Sends what is told of a download.
struct PullLines {
    name: String,
    to_client: mpsc::Sender<Value>,
    last: Mutex<Option<Instant>>,
}

impl PullWatch for PullLines {
    fn progress(&self, done_bytes: u64, total_bytes: u64) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = last.is_none_or(|last| last.elapsed() >= LINE_INTERVAL) || done_bytes == total_bytes;
        if is_due {
            *last = Some(Instant::now());
            // Clients show progress where a line has a digest. All files are one here.
            let _ = self.to_client.try_send(json!({
                "status": format!("pulling {}", self.name),
                "digest": self.name,
                "total": total_bytes,
                "completed": done_bytes,
            }));
        }
    }

    fn status(&self, status: &str) {
        let _ = self.to_client.try_send(json!({ "status": status }));
    }

    fn is_cancelled(&self) -> bool {
        self.to_client.is_closed()
    }
}

/// Answers `DELETE /api/delete`: removes the files of a model of the folder.
pub(crate) async fn delete(models: Models, mut call: Call) -> Result<Response, ApiError> {
    let path = shortened(call.uri.path()).into_owned();
    let request: DeleteRequest = call.read(DELETE_FIELDS)?;
    let Some(folder) = models.managed_folder() else {
        return Err(ApiError::NotImplemented {
            path,
            reason: unmanaged_reason(&models),
        });
    };
    let Some(name) = request.name().filter(|name| !name.is_empty()) else {
        return Err(ApiError::invalid("model", "this field is required"));
    };
    models.look_through_folder().await;
    let idx = models.find(Some(name), Role::Chat).await?;
    let spec = models.listed_one(idx).spec;
    if !spec.is_of_folder {
        let reason = "it was named when the server was started; only models of the folder can be removed";
        return Err(ApiError::invalid("model", reason));
    }
    // Requests find a model by other names too, such as that of its repository. A removal must use the listed
    // name.
    if tagged(name) != tagged(spec.name()) {
        let reason = format!("the model's name is `{}`", spec.name());
        return Err(ApiError::invalid("model", reason));
    }
    models.dismiss(idx);
    let served = spec.name().to_owned();
    let removed = spawn_blocking(move || {
        let manager = folder.manager().ok_or("the folder is not managed")?;
        manager.remove(&served)
    });
    let removed = removed.await.unwrap_or_else(|_| Err("it panicked".to_owned()));
    removed.map_err(|reason| ApiError::invalid("model", reason))?;
    tracing::info!(model = spec.name(), "removed for a client");
    models.look_anew(LOOK_PATIENCE).await;
    Ok(StatusCode::OK.into_response())
}

fn success() -> Value {
    json!({ "status": "success" })
}

fn lines_of(body: Body) -> Response {
    ([(header::CONTENT_TYPE, "application/x-ndjson")], body).into_response()
}

fn unmanaged_reason(models: &Models) -> &'static str {
    if models.only().is_some() {
        "this server serves the one model that it was started with; `tokenmill serve MODEL` serves another"
    } else {
        "this server serves the models that it was started with; `--models` and `--models-dir` say which, and `--manage-models` lets \
         clients change the folder"
    }
}

/// Refuses the paths that manage models.
pub(crate) async fn unmanaged(
    State(models): State<Models>,
    request_id: Extension<RequestId>,
    uri: Uri,
) -> Response {
    let error = ApiError::NotImplemented {
        path: shortened(uri.path()).into_owned(),
        reason: unmanaged_reason(&models),
    };
    models.count_refusal(&error);
    error_response(&error, Dialect::Ollama, &request_id)
}
