//! Answers Ollama's clients that change the set of models: `/api/pull`, `/api/delete`, and the paths that
//! refuse.
//!
//! Invariants: only the models folder changes, and only if the operator allows it; few downloads run at a
//! time; a download ends when its client disconnects, and the next one continues it.

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
use futures_util::{StreamExt as _, stream};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::{
    ApiError, Dialect, Models,
    app::{Call, error_response},
    errors::api_error::shortened,
    model_names::tagged,
    models::{FolderError, FolderManager, PullWatch, Role},
    requests::{fields::label, off_thread::off_thread, request_table::request},
    telemetry::request_id::RequestId,
};

/// Shortest time between two lines about one download.
const LINE_INTERVAL: Duration = Duration::from_millis(100);

/// Lines that wait for a slow client; further progress is left out.
const MAX_LINES: usize = 16;

/// Longest name of a model to download: names are logged.
const MAX_NAME_BYTES: usize = 512;

/// Longest wait until a folder that has changed is looked through.
const LOOK_PATIENCE: Duration = Duration::from_secs(5);

request! {
    /// Asks for a model to be available.
    pub(in crate::endpoints) struct PullRequest {
        required {}
        optional {
            /// Model name.
            model: String = "a served model is available; others are downloaded with `--manage-models`, else refused (501), as is a name \
                             that a file of the folder already has (400)",
            /// Older name of `model`.
            name: String = "the older name of `model`",
            /// Whether the answer is streamed.
            stream: bool = "default true",
        }
        others {
            label("insecure"),
            label("username"),
            label("password"),
        }
    }
}

impl PullRequest {
    /// Returns the name from either field.
    fn name(&self) -> Option<&str> {
        self.model.as_deref().or(self.name.as_deref())
    }
}

request! {
    /// Asks for a model to be removed.
    pub(in crate::endpoints) struct DeleteRequest {
        required {}
        optional {
            /// Model name.
            model: String = "the name of a model of `--models-dir` as it is listed, or of an interrupted download; without \
                             `--manage-models` it is refused (501)",
            /// Older name of `model`.
            name: String = "the older name of `model`",
        }
        others {}
    }
}

impl DeleteRequest {
    /// Returns the name from either field.
    fn name(&self) -> Option<&str> {
        self.model.as_deref().or(self.name.as_deref())
    }
}

/// Answers `/api/pull`: a served model is there, and another is downloaded into the folder of models if the operator allows it.
pub(crate) async fn pull(models: Models, mut call: Call) -> Result<Response, ApiError> {
    let path = shortened(call.uri.path()).into_owned();
    let request: PullRequest = call.read(PullRequest::TABLE.fields())?;
    let name = request.name().unwrap_or_default().to_owned();
    let is_whole = request.stream == Some(false);
    // A file may have been renamed to free its name.
    models.look_through_folder().await;
    if models.has(&name) {
        check_not_hidden(&models, &name).await?;
        return Ok(if is_whole {
            Json(success()).into_response()
        } else {
            let lines = [json!({ "status": "pulling manifest" }), success()];
            lines_of(lines.map(|line| line.to_string() + "\n").concat().into())
        });
    }
    let Some(manager) = models.folder_manager() else {
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
        return Err(ApiError::Busy {
            reason: "no more downloads may run at a time; try again after one of them",
        });
    };
    let (lines, received) = mpsc::channel(MAX_LINES);
    tracing::info!(model = name, "downloading for a client");
    let ended = tokio::spawn(async move {
        let last = download(manager, name, lines, &models).await;
        drop(place);
        last
    });
    let last = async {
        ended.await.unwrap_or_else(|error| {
            Err(ApiError::Internal {
                reason: error.to_string(),
            })
        })
    };
    if is_whole {
        // A download ends once its lines have no receiver.
        let _lines = received;
        return Ok(Json(last.await?).into_response());
    }
    let lines = stream::unfold(received, |mut received| async {
        Some((Ok(received.recv().await?), received))
    });
    let lines = lines.chain(stream::once(last)).map(|line: Line| {
        let line = line.unwrap_or_else(|error| error.body(Dialect::Ollama, ""));
        Ok::<_, Infallible>(line.to_string() + "\n")
    });
    Ok(lines_of(Body::from_stream(lines)))
}

/// Refuses a name of the Hub or of a registry that a file of the managed folder has by chance: the client would get the file's model
/// instead.
async fn check_not_hidden(models: &Models, name: &str) -> Result<(), ApiError> {
    let is_of_source = name.strip_suffix(":latest").unwrap_or(name).contains([':', '/']);
    let Some(manager) = models.folder_manager().filter(|_| is_of_source) else {
        return Ok(());
    };
    let spec = models.listed_one(models.find(Some(name), Role::Chat).await?).spec;
    if spec.is_of_folder && !manager.has_pulled(spec.name()) {
        let reason = format!(
            "a file in the folder of models is served as `{}`, so a download of `{name}` would not be served; rename the file",
            spec.name()
        );
        return Err(ApiError::invalid("model", reason));
    }
    Ok(())
}

/// The last line about a download, or its failure.
type Line = Result<Value, ApiError>;

/// Converts an error of a change of the folder: a fault of the request names its field, and a failure here is the server's.
fn folder_error(error: FolderError) -> ApiError {
    match error {
        FolderError::Refused { reason } => ApiError::invalid("model", reason),
        FolderError::Busy { reason } => ApiError::Busy { reason },
        FolderError::Full { reason } => ApiError::StorageFull { reason },
        FolderError::Failed { reason } => ApiError::FolderFailed { reason },
    }
}

/// Changes the folder on another thread than those of connections.
async fn change<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, FolderError> + Send + 'static,
) -> Result<T, ApiError> {
    off_thread(work).await?.map_err(folder_error)
}

/// Downloads a model and has the folder looked through. Returns the last line.
async fn download(
    manager: Arc<dyn FolderManager>,
    name: String,
    lines: mpsc::Sender<Value>,
    models: &Models,
) -> Line {
    let asked = name.clone();
    let pulled = change(move || {
        let watch = PullLines {
            name: name.clone(),
            to_client: lines,
            last: Mutex::new(None),
        };
        watch.status("pulling manifest");
        manager.pull(&name, &watch)
    });
    match pulled.await {
        Ok(()) => {
            models.look_anew(LOOK_PATIENCE).await;
            tracing::info!(model = asked, "downloaded for a client");
            Ok(success())
        }
        Err(error) => {
            tracing::warn!(model = asked, "not downloaded: {error}");
            Err(error)
        }
    }
}

/// Sends the events of a download.
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

/// Answers `DELETE /api/delete`: removes the files of a model of the folder, or those of an interrupted download.
pub(crate) async fn delete(models: Models, mut call: Call) -> Result<Response, ApiError> {
    let path = shortened(call.uri.path()).into_owned();
    let request: DeleteRequest = call.read(DeleteRequest::TABLE.fields())?;
    let Some(manager) = models.folder_manager() else {
        return Err(ApiError::NotImplemented {
            path,
            reason: unmanaged_reason(&models),
        });
    };
    let Some(name) = request.name().filter(|name| !name.is_empty()) else {
        return Err(ApiError::invalid("model", "this field is required"));
    };
    models.look_through_folder().await;
    let (idx, served) = match find_to_remove(&models, name).await {
        Ok(found) => found,
        Err(refusal) => {
            // An interrupted download has files, but there is no model of its name.
            let asked = name.to_owned();
            if !change(move || manager.remove_partial(&asked)).await? {
                return Err(refusal);
            }
            tracing::info!(model = name, "the parts of a download were removed for a client");
            return Ok(StatusCode::OK.into_response());
        }
    };
    // A removal continues without its client, and so does the rest.
    let removed = tokio::spawn(async move { remove(manager, served, idx, &models).await });
    removed.await.unwrap_or_else(|error| {
        Err(ApiError::Internal {
            reason: error.to_string(),
        })
    })?;
    Ok(StatusCode::OK.into_response())
}

/// Removes a model's files, then has the model unloaded and the folder looked through. A model whose removal is refused stays as it is.
async fn remove(
    manager: Arc<dyn FolderManager>,
    served: String,
    idx: usize,
    models: &Models,
) -> Result<(), ApiError> {
    let model = served.clone();
    change(move || manager.remove(&served)).await?;
    models.dismiss(idx);
    tracing::info!(model, "removed for a client");
    models.look_anew(LOOK_PATIENCE).await;
    Ok(())
}

/// Finds the model of the folder that is listed under a name. Returns its place and that name.
///
/// # Errors
/// Fails if no model has the name, if the model is not one of the folder, and if its listed name differs.
async fn find_to_remove(models: &Models, name: &str) -> Result<(usize, String), ApiError> {
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
    Ok((idx, spec.name().to_owned()))
}

fn success() -> Value {
    json!({ "status": "success" })
}

fn lines_of(body: Body) -> Response {
    ([(header::CONTENT_TYPE, "application/x-ndjson")], body).into_response()
}

fn unmanaged_reason(models: &Models) -> &'static str {
    if models.only().is_some() {
        "this server serves the one model that it was started with; `tokenmill serve --models-dir DIR --manage-models` lets clients \
         download models"
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
