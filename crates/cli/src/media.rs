//! [`MediaArgs`]: the folder whose files requests may name.
//!
//! `serve` and `batch` take it. Invariant: without the option no request reads a file.

use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// Where the images of requests may be.
#[derive(clap::Args, Debug, Clone, Default)]
pub(crate) struct MediaArgs {
    /// Let requests name images in this folder by URL: file://photo.jpg, or file:///… with the full path. Without it, requests cannot
    /// read files
    #[arg(long, visible_alias = "allowed-local-media-path", value_name = "DIR")]
    media_path: Option<PathBuf>,
}

impl MediaArgs {
    /// Returns the folder, if one is given.
    ///
    /// # Errors
    /// Fails if the path is not a folder.
    pub(crate) fn folder(&self) -> Result<Option<PathBuf>, Failure> {
        existing_folder("--media-path", self.media_path.as_deref())
    }
}

/// Checks that the folder that requests may read exists.
pub(crate) fn existing_folder(option: &str, path: Option<&Path>) -> Result<Option<PathBuf>, Failure> {
    match path {
        Some(path) if !path.is_dir() => Err(Failure::usage(format!(
            "`{option} {}` is not a folder",
            path.display()
        ))),
        path => Ok(path.map(Path::to_owned)),
    }
}
