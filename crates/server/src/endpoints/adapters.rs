//! Adapters that come and go while the server runs: vLLM's `POST /v1/load_lora_adapter` and
//! `/v1/unload_lora_adapter`, and llama.cpp's `/lora-adapters`.
//!
//! Unlike requests for texts, these change the set of served models. Invariant: without a folder for adapters
//! clients change nothing, and with one no path leads out of it.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use axum::{
    Json,
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokenmill::{Error, adapters::AdapterSource};

use crate::{
    ApiError, App,
    app::Call,
    models::OneModel,
    requests::{
        fields::{only, yes},
        off_thread::off_thread,
        request_table::request,
    },
};

request! {
    /// A request of `/v1/load_lora_adapter`.
    pub(super) struct LoadRequest {
        required {
            /// Name of the adapter.
            lora_name: String = "the model name for requests",
            /// Its file or folder.
            lora_path: PathBuf = "a GGUF file or a PEFT folder below the server's `--lora-dir`",
        }
        optional {}
        others {
            only(
                "load_inplace",
                &["false"],
                "an adapter of the same name is not replaced; unload it first",
            ),
        }
    }
}

request! {
    /// A request of `/v1/unload_lora_adapter`.
    pub(super) struct UnloadRequest {
        required {
            /// Name of the adapter.
            lora_name: String = "the adapter",
        }
        optional {}
        others {
            yes("lora_int_id", "extension of vLLM; a number that nothing is found by"),
        }
    }
}

#[derive(Deserialize)]
struct Scale {
    id: usize,
    scale: f32,
}

/// Loads an adapter.
pub(crate) async fn load(app: Arc<App>, mut call: Call) -> Result<Response, ApiError> {
    let LoadRequest { lora_name, lora_path } = call.read(LoadRequest::TABLE.fields())?;
    let folder = folder(&app, "lora_name")?;
    if app.model.names().contains(&lora_name) {
        return Err(ApiError::invalid("lora_name", "is the name of the model"));
    }
    // A request with this name would select the model.
    if call.model_names.has_model(&lora_name) {
        return Err(ApiError::invalid(
            "lora_name",
            "is the name of a model of this server",
        ));
    }
    let source = AdapterSource {
        path: path_below(folder, &lora_path)?,
        name: lora_name.clone(),
        strength: 1.0,
    };
    // Clients must not learn the folder's path.
    let root = format!("{}/", folder.canonicalize().unwrap_or_default().display());
    change(&app, move |app| app.model.model().load_adapter(&source).map(drop))
        .await
        .map_err(|error| match error {
            ApiError::InvalidField { param, reason } => ApiError::InvalidField {
                param,
                reason: reason.replace(&root, ""),
            },
            other => other,
        })?;
    Ok(format!("Success: LoRA adapter '{lora_name}' added successfully.").into_response())
}

/// Unloads an adapter; requests that have it end with it.
pub(crate) async fn unload(app: Arc<App>, mut call: Call) -> Result<Response, ApiError> {
    let UnloadRequest { lora_name } = call.read(UnloadRequest::TABLE.fields())?;
    folder(&app, "lora_name")?;
    let name = lora_name.clone();
    change(&app, move |app| app.model.model().unload_adapter(&name)).await?;
    Ok(format!("Success: LoRA adapter '{lora_name}' removed successfully.").into_response())
}

/// Lists the adapters, as llama.cpp does.
pub(crate) async fn list(one: OneModel) -> Response {
    let app = one.app();
    let adapters = app.model.model().adapters();
    let adapters = adapters.iter().enumerate().map(|(id, adapter)| {
        let file = adapter.path.file_name().map(|name| name.to_string_lossy());
        json!({
            "id": id,
            "name": adapter.name,
            "path": file,
            "scale": adapter.strength,
            "rank": adapter.rank,
        })
    });
    Json(adapters.collect::<Value>()).into_response()
}

/// Changes the scales of adapters, as llama.cpp does: adapters that the list leaves out get 0.
pub(crate) async fn scale(app: Arc<App>, call: Call) -> Result<Response, ApiError> {
    let scales: Vec<Scale> =
        serde_json::from_slice(&call.body.bytes).map_err(|error| ApiError::MalformedJson {
            reason: error.to_string(),
        })?;
    folder(&app, "scale")?;
    let adapters = app.model.model().adapters();
    let mut strengths: Vec<f32> = vec![0.0; adapters.len()];
    for (index, Scale { id, scale }) in scales.into_iter().enumerate() {
        let strength = strengths.get_mut(id).ok_or_else(|| {
            ApiError::invalid(
                format!("[{index}].id"),
                format!("{id} is none of {} adapters", adapters.len()),
            )
        })?;
        if !scale.is_finite() {
            return Err(ApiError::invalid(
                format!("[{index}].scale"),
                "is not a valid scale",
            ));
        }
        *strength = scale;
    }
    change(&app, move |app| {
        for (adapter, strength) in adapters.iter().zip(strengths) {
            app.model.model().set_adapter_strength(&adapter.name, strength)?;
        }
        Ok(())
    })
    .await?;
    Ok(Json(json!({ "success": true })).into_response())
}

/// Returns the folder whose adapters clients may load; `param` is the field of the request.
fn folder<'a>(app: &'a App, param: &str) -> Result<&'a Path, ApiError> {
    (app.config.adapter_folder.as_deref()).ok_or_else(|| ApiError::UnsupportedField {
        param: param.to_owned(),
        reason: "clients of this server cannot change its adapters; its `--lora-dir` names a folder of adapters that they can load",
    })
}

/// The path of a file below a folder; a relative one begins there. Links are followed before it is compared.
fn path_below(folder: &Path, asked: &Path) -> Result<PathBuf, ApiError> {
    let not_there = || {
        ApiError::invalid(
            "lora_path",
            "is not a file or folder below the server's `--lora-dir`",
        )
    };
    let folder = folder.canonicalize().map_err(|_| not_there())?;
    let path = folder.join(asked).canonicalize().map_err(|_| not_there())?;
    if path != folder && path.starts_with(&folder) {
        Ok(path)
    } else {
        Err(not_there())
    }
}

/// Runs work that waits for the engine apart from the threads of connections.
async fn change(
    app: &Arc<App>,
    change: impl FnOnce(&App) -> Result<(), Error> + Send + 'static,
) -> Result<(), ApiError> {
    let app = Arc::clone(app);
    match off_thread(move || change(&app)).await? {
        // The file's fault, in one line.
        Err(Error::AdapterFile { source, .. }) => Err(ApiError::invalid("lora_path", source.to_string())),
        Err(Error::UnknownAdapter { name, available }) => Err(ApiError::UnknownAdapter {
            adapter: name,
            available: available.join(", "),
        }),
        changed => Ok(changed?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_path_leads_out_of_the_folder() {
        let outer = tempfile::tempdir().unwrap();
        let folder = outer.path().join("adapters");
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("a.gguf"), "").unwrap();
        std::fs::write(outer.path().join("b.gguf"), "").unwrap();
        let found = |path: &str| path_below(&folder, Path::new(path)).ok();
        let inside = folder.canonicalize().unwrap().join("a.gguf");
        assert_eq!(found("a.gguf"), Some(inside.clone()));
        assert_eq!(found("../adapters/a.gguf"), Some(inside.clone()));
        assert_eq!(found(&inside.to_string_lossy()), Some(inside));
        for outside in ["", ".", "..", "../b.gguf", "/", "no.gguf"] {
            assert_eq!(found(outside), None, "{outside}");
        }
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink(outer.path().join("b.gguf"), folder.join("link.gguf")).unwrap();
            assert_eq!(found("link.gguf"), None);
        }
    }
}
