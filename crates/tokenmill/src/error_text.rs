//! Parts of the messages of [`Error`](crate::Error).

use std::{error::Error as _, path::Path};

use tokenmill_model::LoadError;
use tokenmill_text::TokenizerError;

use crate::memory_text::size;

/// Describes the memory of an MTP layer that loads with the model.
pub(crate) fn mtp_text(mtp_bytes: usize) -> String {
    match mtp_bytes {
        0 => String::new(),
        n_bytes => format!("; its MTP layer takes {} more", size(n_bytes)),
    }
}

/// Returns an error's text with that of its source.
pub(crate) fn with_source(error: &TokenizerError) -> String {
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

pub(crate) fn projector_text(path: &Path, source: &LoadError) -> String {
    let path = path.display();
    match source {
        LoadError::UnknownArchitecture { found, .. } => {
            format!("{path} is not an image encoder but a model of the architecture `{found}`")
        }
        _ => format!("the image encoder {path} cannot be used: {source}"),
    }
}

/// Describes how much of a request for layers on the GPU would fit.
pub(crate) fn what_fits(
    fitting_layers: usize,
    n_layers: usize,
    fitting_host_experts: Option<usize>,
) -> String {
    let layers = match fitting_layers {
        0 => "no layer would fit".to_owned(),
        n => format!("{n} of {n_layers} layers would fit"),
    };
    match fitting_host_experts {
        Some(n) => {
            format!("{layers}, and all requested ones with the experts of the first {n} on the CPU")
        }
        None => layers,
    }
}
