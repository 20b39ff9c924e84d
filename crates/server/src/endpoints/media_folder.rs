//! [`read_images`]: images of requests that are files of the server's media folder.
//!
//! Only here are files opened for images. Invariants: without a folder nothing is opened, and with one
//! nothing outside of it; no answer tells whether something outside exists; the size of the files counts as
//! if they had come in the body.

use std::path::{Component, Path, PathBuf};

use serde_json::Value;
use tokenmill::{images::image_part, text::RegularFile};
use tokenmill_sched::EngineError;

use crate::{
    ApiError, App, ServerConfig,
    dialects::openai::chat::TemplateMessage,
    requests::off_thread::off_thread,
    requests::{
        images::ImageFile,
        intake::{Intake, Share},
        paths::unescaped,
    },
};

const NO_FOLDER: &str = "no files are read here; `--media-path DIR` of `serve` and `batch` allows those in a folder, and a `data:` URL holds the \
                         image itself";

const NOT_THERE: &str = "is not a file below the server's `--media-path`";

/// A file that may be read.
#[derive(Debug)]
struct Found {
    param: String,
    /// In the folder.
    below: PathBuf,
    n_bytes: usize,
}

/// Puts the bytes of files into the messages that name them. They are of the request's `share` until that is dropped.
///
/// # Errors
/// Files where the model takes no images or not as many, or where there is no folder for them, a file that is not in it, more bytes than a body may have, and no room for them in time.
pub(crate) async fn read_images(
    app: &App,
    share: &mut Share,
    messages: &mut [TemplateMessage],
) -> Result<(), ApiError> {
    let parts = messages.iter().flat_map(|message| &message.parts);
    let asked: Vec<ImageFile> = parts.filter_map(ImageFile::of).collect();
    let Some(first) = asked.first() else {
        return Ok(());
    };
    // Checks that do not depend on the files come first, so that a refused request opens none.
    if app.engine().limits().is_encoder {
        return Err(EngineError::PredictsNoTokens.into());
    }
    let n_images = messages.iter().map(TemplateMessage::n_images).sum();
    app.model.model().words().check_images(n_images)?;
    let Some(folder) = app.config.media_folder.clone() else {
        return Err(ApiError::invalid(&first.param, NO_FOLDER));
    };
    let mut read = read(&app.config, &app.intake, share, folder, asked)
        .await?
        .into_iter();
    let parts = messages.iter_mut().flat_map(|message| &mut message.parts);
    for part in parts.filter(|part| ImageFile::of(part).is_some()) {
        *part = read.next().expect("each that was asked for was read");
    }
    Ok(())
}

/// The images as parts of messages, in their order.
async fn read(
    config: &ServerConfig,
    intake: &Intake,
    share: &mut Share,
    folder: PathBuf,
    asked: Vec<ImageFile>,
) -> Result<Vec<Value>, ApiError> {
    let max_bytes = config.max_media_bytes.unwrap_or(config.max_body_bytes);
    let given = folder.clone();
    let found = off_thread(move || {
        let folder = MediaFolder::open(&given);
        let mut found = Vec::with_capacity(asked.len());
        let mut n_bytes = 0_usize;
        for asked in asked {
            let file = folder.as_ref().and_then(|folder| folder.find(&asked.path));
            let (below, n_file) = file.ok_or_else(|| ApiError::invalid(&asked.param, NOT_THERE))?;
            if n_file == 0 {
                return Err(ApiError::invalid(asked.param, "the image is empty"));
            }
            n_bytes = n_bytes.saturating_add(as_text(n_file));
            if n_bytes > max_bytes {
                let reason = format!(
                    "the images of this request have more than the {max_bytes} bytes, in base64, that they may have together"
                );
                return Err(ApiError::invalid(asked.param, reason));
            }
            found.push(Found {
                param: asked.param,
                below,
                n_bytes: n_file,
            });
        }
        Ok((found, n_bytes))
    });
    let (found, n_bytes) = found.await??;
    intake.grow_by(config, share, n_bytes).await?;
    off_thread(move || {
        let read = found.into_iter().map(|found| {
            // A file that has grown since is refused; so is one that is gone or now leads out of the folder.
            let file = RegularFile::open_below(&folder, &found.below);
            let bytes = file.and_then(|file| file.read_whole(found.n_bytes));
            let bytes = bytes.map_err(|_| ApiError::invalid(found.param, NOT_THERE))?;
            Ok(image_part(&bytes))
        });
        read.collect()
    })
    .await?
}

/// Characters of base64.
fn as_text(n_bytes: usize) -> usize {
    n_bytes.div_ceil(3).saturating_mul(4)
}

/// The folder, as it was given and without links.
struct MediaFolder {
    given: PathBuf,
    real: PathBuf,
}

impl MediaFolder {
    fn open(path: &Path) -> Option<Self> {
        Some(Self {
            given: std::path::absolute(path).ok()?,
            real: path.canonicalize().ok()?,
        })
    }

    /// A regular file of the folder, as its path in it and its length, by a relative path or an absolute one. Nothing is looked at before
    /// the path is known to begin in the folder and to go down only.
    fn find(&self, asked: &str) -> Option<(PathBuf, usize)> {
        let asked = String::from_utf8(unescaped(asked)).ok()?;
        let asked = Path::new(&asked);
        let below = if asked.has_root() {
            let mut homes = [&self.given, &self.real].into_iter();
            homes.find_map(|home| asked.strip_prefix(home).ok())?
        } else {
            asked
        };
        let goes_down = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
        if !below.components().all(goes_down) {
            return None;
        }
        let file = RegularFile::open_below(&self.real, below).ok()?;
        Some((
            below.to_owned(),
            usize::try_from(file.n_bytes()).unwrap_or(usize::MAX),
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn no_path_leads_out_of_the_folder() {
        let outer = tempfile::tempdir().expect("a folder");
        let home = outer.path().join("media");
        fs::create_dir_all(home.join("deep er")).expect("a folder");
        fs::write(home.join("a.png"), "abc").expect("a file");
        fs::write(home.join("deep er/100%.png"), "de").expect("a file");
        fs::write(outer.path().join("secret.png"), "no").expect("a file");
        fs::create_dir(outer.path().join("media-too")).expect("a folder");
        fs::write(outer.path().join("media-too/b.png"), "no").expect("a file");
        let folder = MediaFolder::open(&home).expect("it is there");
        let n_bytes = |path: &str| folder.find(path).map(|(_, n_bytes)| n_bytes);
        let absolute = |path: &str| home.join(path).display().to_string();
        for (path, expected) in [
            ("a.png", Some(3)),
            ("./a.png", Some(3)),
            (&absolute("a.png"), Some(3)),
            ("deep%20er/100%25.png", Some(2)),
            ("deep er/100%.png", Some(2)),
            (&absolute("deep%20er/100%25.png"), Some(2)),
            ("none.png", None),
            ("", None),
            (".", None),
            ("deep er", None),
            ("a.png%00", None),
            ("%ff.png", None),
            ("../secret.png", None),
            ("../media/a.png", None),
            ("deep%20er/../a.png", None),
            ("%2e%2e/secret.png", None),
            ("..%2fsecret.png", None),
            (&absolute("../secret.png"), None),
            (&absolute("../media-too/b.png"), None),
            (&outer.path().join("media-too/b.png").display().to_string(), None),
            ("/etc/passwd", None),
            ("//etc/passwd", None),
        ] {
            assert_eq!(n_bytes(path), expected, "{path}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn links_are_followed_inside_only() {
        use std::os::unix::fs::symlink;
        let outer = tempfile::tempdir().expect("a folder");
        let home = outer.path().join("media");
        fs::create_dir(&home).expect("a folder");
        fs::write(home.join("a.png"), "abc").expect("a file");
        fs::write(outer.path().join("secret.png"), "no").expect("a file");
        let link = |to: &Path, name: &str| symlink(to, home.join(name)).expect("a link");
        link(&home.join("a.png"), "inside.png");
        link(&outer.path().join("secret.png"), "outside.png");
        link(&outer.path().join("nothing.png"), "dangling.png");
        link(outer.path(), "up");
        symlink(&home, outer.path().join("alias")).expect("a link");
        for home in [home.clone(), outer.path().join("alias")] {
            let folder = MediaFolder::open(&home).expect("it is there");
            let is_found = |path: &str| folder.find(path).is_some();
            for name in ["a.png", "inside.png"] {
                assert!(is_found(name), "{name}");
                assert!(is_found(&home.join(name).display().to_string()), "{name}");
            }
            for name in [
                "outside.png",
                "dangling.png",
                "up/secret.png",
                "up/media/../secret.png",
            ] {
                assert!(!is_found(name), "{name}");
            }
        }
    }
}
