//! [`VisionArgs`]: the image encoder that a command loads with its model, and the images of its messages.
//!
//! `run`, `chat` and `serve` share it. Invariant: an image is a part of a message and includes its bytes, so
//! a stored conversation is complete.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tokenmill::{
    Error, Model,
    images::{check_image, image_part},
    load::Projector,
};
use tokenmill_gguf::RegularFile;

use crate::failure::Failure;

/// Bytes that an image's file may have.
pub(crate) const MAX_IMAGE_BYTES: usize = 64 << 20;

/// The image encoder of a command.
#[derive(clap::Args, Debug, Clone, Default)]
#[command(next_help_heading = "Loading")]
pub(crate) struct VisionArgs {
    /// Load the model's image encoder from this GGUF file [default: one next to the model that fits it and has mmproj
    /// in its name] [short: -mm]
    #[arg(long, value_name = "FILE")]
    mmproj: Option<PathBuf>,
    /// Do not load an image encoder
    #[arg(long, conflicts_with = "mmproj")]
    no_mmproj: bool,
    /// Whether images are already there.
    #[arg(skip)]
    shows_images: bool,
}

impl VisionArgs {
    /// Whether a file is named.
    pub(crate) fn names_file(&self) -> bool {
        self.mmproj.is_some()
    }

    /// Whether images are switched off.
    pub(crate) fn is_off(&self) -> bool {
        self.no_mmproj
    }

    /// Takes a relative path as relative to a folder.
    pub(crate) fn move_below(&mut self, folder: &Path) {
        if let Some(path) = &mut self.mmproj {
            *path = folder.join(&path);
        }
    }

    /// Returns a copy with or without images.
    pub(crate) fn with_images(&self, shows_images: bool) -> Self {
        Self {
            shows_images,
            ..self.clone()
        }
    }

    /// Says whether images are already there.
    pub(crate) fn shows_images(&self) -> bool {
        self.shows_images
    }

    /// Where the encoder is.
    pub(crate) fn projector(&self) -> Projector {
        match &self.mmproj {
            _ if self.no_mmproj => Projector::None,
            Some(path) => Projector::File(path.clone()),
            None => Projector::Beside,
        }
    }
}

/// Why a model without an encoder refuses images; `hint` says how it gets one.
pub(crate) fn refusal(model: &Model, hint: Option<String>) -> Failure {
    let error = model.words().no_vision();
    // Kinds of models without encoders keep their own messages.
    let hint = hint.filter(|_| matches!(error, Error::NoVision));
    let failure = Failure::from(error);
    hint.into_iter().fold(failure, Failure::hint)
}

/// Reads an image as a part of a message.
///
/// # Errors
/// As [`read_image_file`].
pub(crate) fn read_image(path: &Path) -> Result<Value, Failure> {
    Ok(image_part(&read_image_file(path)?))
}

/// Reads the file of an image.
///
/// # Errors
/// A file that cannot be read, is too large, or is no image.
pub(crate) fn read_image_file(path: &Path) -> Result<Vec<u8>, Failure> {
    let is_url = path.to_str().is_some_and(|text| text.contains("://"));
    if is_url && !path.exists() {
        let message = format!("{} is a URL, and images are read from files only", path.display());
        return Err(Failure::usage(message).hint("download it first"));
    }
    let bytes = RegularFile::read(path, MAX_IMAGE_BYTES);
    let bytes = bytes.map_err(|error| Failure::unreadable(path, &error))?;
    check_image(&bytes).map_err(|error| Failure::input(format!("{}: {error}", path.display())))?;
    Ok(bytes)
}

/// The content of a message of images and a text.
pub(crate) fn content(images: &[Value], text: &str) -> Value {
    if images.is_empty() {
        return text.into();
    }
    let text = json!({"type": "text", "text": text});
    images.iter().cloned().chain([text]).collect()
}

/// A conversation for people to read, without the bytes of its images.
pub(crate) fn without_bytes(mut messages: Vec<Value>) -> Vec<Value> {
    let contents = messages
        .iter_mut()
        .filter_map(|message| message.get_mut("content")?.as_array_mut());
    for part in contents.flatten() {
        if let Some(Value::String(url)) = part.pointer_mut("/image_url/url") {
            let n_shown = url.find(',').map_or(0, |comma| comma + 1);
            *url = format!("{}… ({} characters)", &url[..n_shown], url.len());
        }
    }
    messages
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_come_before_their_text_and_are_not_shown() {
        assert_eq!(content(&[], "Hi"), json!("Hi"));
        let said = content(&[image_part(b"abc")], "Hi");
        assert_eq!(said[1], json!({"type": "text", "text": "Hi"}));
        let shown = without_bytes(vec![
            json!({"role": "user", "content": said}),
            json!({"content": "x"}),
        ]);
        let url = shown[0]["content"][0]["image_url"]["url"].as_str();
        assert_eq!(url, Some("data:;base64,… (17 characters)"));
    }
}
