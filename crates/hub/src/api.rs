//! [`Hub`]: the requests to the Hub, and the meaning of its refusals.
//!
//! Statuses and headers have specific meanings here. Invariant: an answer's contents are checked before they
//! name a file or a folder.

use std::{collections::BTreeSet, sync::atomic::AtomicBool};

use crate::{
    HubError, HubSettings, ModelName, PullObserver,
    address::shown,
    http::{Ask, Client, Reply, bad_answer, encode},
    lists::{Found, RepositoryList, Sibling},
    model_name::is_relative_path,
    retry::{Attempts, Fault},
};

/// Largest list of files that is read, in bytes. The largest repositories have lists of some megabytes.
const MAX_LIST_BYTES: u64 = 64 << 20;
/// Largest list of similar names for a missing model, in bytes. The request asks for fifty.
const MAX_NEAR_BYTES: u64 = 4 << 20;
/// Largest credible file size, which keeps sums of sizes from overflowing.
const MAX_FILE_BYTES: u64 = 1 << 50;
/// Number of tries of a request.
const MAX_TRIES: u32 = 4;

/// The Hub's interface for models.
pub(crate) struct Hub<'a> {
    pub(crate) client: Client,
    settings: &'a HubSettings,
    observer: &'a dyn PullObserver,
    waits_for_network: bool,
}

/// Lists the files of a repository at one commit.
#[derive(Debug)]
pub(crate) struct Listing {
    pub(crate) commit: String,
    pub(crate) files: Vec<ListedFile>,
}

/// A file in a list; the fields besides its path depend on the server.
#[derive(Debug, Clone)]
pub(crate) struct ListedFile {
    pub(crate) path: String,
    pub(crate) n_bytes: Option<u64>,
    etag: Option<String>,
}

/// A file that can be downloaded.
#[derive(Debug, Clone)]
pub(crate) struct RemoteFile {
    pub(crate) path: String,
    pub(crate) url: String,
    pub(crate) etag: String,
    pub(crate) n_bytes: u64,
}

impl<'a> Hub<'a> {
    pub(crate) fn new(settings: &'a HubSettings, observer: &'a dyn PullObserver) -> Result<Self, HubError> {
        Ok(Self {
            client: Client::new(settings)?,
            settings,
            observer,
            waits_for_network: true,
        })
    }

    /// Fails at once without a network, unless `waits`: a user who has the model already need not wait for a connection.
    pub(crate) fn waiting_for_network(self, waits: bool) -> Self {
        Self {
            waits_for_network: waits,
            ..self
        }
    }

    /// Lists a repository.
    pub(crate) fn list(&self, name: &ModelName) -> Result<Listing, HubError> {
        let revision = encode(name.revision().unwrap_or("main"), false);
        let path = format!("api/models/{}/revision/{revision}?blobs=true", name.repository());
        let url = format!("{}/{path}", self.settings.endpoint);
        let bytes = match self.get(&url, name) {
            Err(HubError::NotFound {
                name: typed, host, ..
            }) => {
                let near = self.near(name);
                return Err(HubError::NotFound {
                    name: typed,
                    host,
                    near,
                });
            }
            bytes => bytes?,
        };
        let list: RepositoryList = serde_json::from_slice(&bytes)
            .map_err(|error| bad_answer(&url, format!("it is not a list of files: {error}")))?;
        drop(bytes);
        if !is_commit(&list.sha) {
            return Err(bad_answer(&url, "it names no commit"));
        }
        let files = list.siblings.into_iter();
        let files = files.map(|file| listed(file).map_err(|reason| bad_answer(&url, reason)));
        Ok(Listing {
            files: files.collect::<Result<_, _>>()?,
            commit: list.sha,
        })
    }

    /// Returns the facts that a download of a file needs; asks the server only for those that its list does not contain.
    pub(crate) fn file(
        &self,
        name: &ModelName,
        commit: &str,
        file: &ListedFile,
    ) -> Result<RemoteFile, HubError> {
        let url = self.url_of(name, commit, &file.path);
        let (etag, n_bytes) = match (&file.etag, file.n_bytes) {
            (Some(etag), Some(n_bytes)) => (etag.clone(), n_bytes),
            _ => self.head(&url, name, commit, file)?,
        };
        Ok(RemoteFile {
            path: file.path.clone(),
            url,
            etag,
            n_bytes,
        })
    }

    /// Returns the etag and the size of a file, from the endpoint itself.
    pub(crate) fn head(
        &self,
        url: &str,
        name: &ModelName,
        commit: &str,
        file: &ListedFile,
    ) -> Result<(String, u64), HubError> {
        let reply = self.ask(url, Ask::Head, name)?;
        if reply.header("x-repo-commit").is_some_and(|found| found != commit) {
            return Err(HubError::Changed {
                file: file.path.clone(),
            });
        }
        let is_redirect = (300..400).contains(&reply.status);
        let size = reply
            .header("x-linked-size")
            .and_then(|text| text.trim().parse().ok());
        let n_bytes = size
            .or_else(|| reply.content_length().filter(|_| !is_redirect))
            .or(file.n_bytes)
            .filter(|n_bytes| *n_bytes <= MAX_FILE_BYTES)
            .ok_or_else(|| bad_answer(url, "it does not say how large the file is"))?;
        let etag = reply.etag().unwrap_or_default();
        if !is_blob_name(etag) {
            return Err(bad_answer(url, "its etag cannot name a file"));
        }
        Ok((etag.to_owned(), n_bytes))
    }

    /// Downloads a small file into memory.
    pub(crate) fn read(&self, name: &ModelName, commit: &str, path: &str) -> Result<Vec<u8>, HubError> {
        self.get(&self.url_of(name, commit, path), name)
    }

    fn url_of(&self, name: &ModelName, commit: &str, path: &str) -> String {
        let endpoint = &self.settings.endpoint;
        format!(
            "{endpoint}/{}/resolve/{commit}/{}",
            name.repository(),
            encode(path, true)
        )
    }

    /// Downloads an address into memory; the file must be small.
    pub(crate) fn get(&self, url: &str, name: &ModelName) -> Result<Vec<u8>, HubError> {
        self.attempts().run(|| {
            let reply = self.client.send(url, Ask::Whole)?;
            self.judge(reply, name)?.into_bytes(MAX_LIST_BYTES)
        })
    }

    fn ask(&self, url: &str, ask: Ask, name: &ModelName) -> Result<Reply, HubError> {
        self.attempts()
            .run(|| self.judge(self.client.send(url, ask)?, name))
    }

    fn attempts(&self) -> Attempts<'a> {
        static NEVER: AtomicBool = AtomicBool::new(false);
        Attempts::new(self.settings.retry_pause, self.observer, &NEVER)
            .at_most(MAX_TRIES)
            .waiting_for_network(self.waits_for_network)
    }

    /// Passes successful answers on and interprets refusals.
    pub(crate) fn judge(&self, reply: Reply, name: &ModelName) -> Result<Reply, Fault> {
        if reply.status < 400 {
            return Ok(reply);
        }
        let reason = reply.header("x-error-message").unwrap_or_default().to_owned();
        let host = self.client.host().to_owned();
        let repository = name.repository();
        let not_found = || HubError::NotFound {
            name: repository.clone(),
            host: host.clone(),
            near: Vec::new(),
        };
        let gated = || HubError::Gated {
            name: repository.clone(),
            page: format!("{}/{repository}", self.settings.shown_endpoint()),
            reason: if reason.is_empty() {
                "its conditions must be accepted first".to_owned()
            } else {
                reason.clone()
            },
            had_token: self.client.has_token(),
        };
        let error = match (reply.status, reply.header("x-error-code")) {
            (401 | 403, Some("GatedRepo")) => gated(),
            (401 | 404, Some("RepoNotFound")) => not_found(),
            (404, Some("RevisionNotFound")) => HubError::NoRevision {
                name: repository,
                revision: name.revision().unwrap_or("main").to_owned(),
            },
            (401, _) if self.client.has_token() => HubError::BadToken { host, reason },
            // Without a token the Hub does not say whether a repository exists.
            (401, _) => not_found(),
            (403, _) if reason.to_lowercase().contains("gated") => gated(),
            (404, None)
                if ["/api/models/", "/manifests/"]
                    .iter()
                    .any(|part| reply.url.contains(part)) =>
            {
                not_found()
            }
            _ => return Err(refusal(&reply)),
        };
        Err(error.into())
    }

    /// Returns repositories with names similar to one that does not exist; none if the server does not
    /// search.
    fn near(&self, name: &ModelName) -> Vec<String> {
        const MAX_NEAR: usize = 3;
        let word = name
            .short_name()
            .split(['-', '_', '.'])
            .next()
            .unwrap_or_default();
        let mut found = BTreeSet::new();
        for query in [
            format!("search={}", encode(name.short_name(), false)),
            format!(
                "author={}&search={}",
                encode(name.owner(), false),
                encode(word, false)
            ),
            format!("author={}", encode(name.owner(), false)),
        ] {
            let url = format!("{}/api/models?{query}&limit=50", self.settings.endpoint);
            // Suggestions are optional, so their failure is ignored.
            let list = (self.client.send(&url, Ask::Whole).ok())
                .filter(|reply| reply.status == 200)
                .and_then(|reply| reply.into_bytes(MAX_NEAR_BYTES).ok())
                .and_then(|bytes| serde_json::from_slice::<Vec<Found>>(&bytes).ok());
            let ids = list.into_iter().flatten().filter_map(Found::into_name);
            found.extend(ids.filter(|id| id.parse::<ModelName>().is_ok()));
            if !found.is_empty() {
                break;
            }
        }
        let typed = name.repository().to_lowercase();
        let mut near: Vec<(usize, String)> = found
            .into_iter()
            .map(|id| (distance(&typed, &id.to_lowercase()), id))
            .collect();
        near.sort();
        near.into_iter().take(MAX_NEAR).map(|(_, id)| id).collect()
    }
}

/// Explains a status that does not depend on the repository.
pub(crate) fn refusal(reply: &Reply) -> Fault {
    let url = shown(&reply.url);
    let after = reply.retry_after();
    let error = match reply.status {
        429 => HubError::TooManyRequests {
            host: reply.host().to_owned(),
            after,
        },
        408 | 500..=599 => HubError::ServerFailed {
            url,
            status: reply.status,
            n_tries: 1,
        },
        status => {
            return Fault::Final(HubError::Refused {
                url,
                status,
                reason: reply.header("x-error-message").unwrap_or_default().to_owned(),
            });
        }
    };
    Fault::Again { error, after }
}

/// Returns whether a text is a commit, which names a folder.
pub(crate) fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Returns whether an etag can name a file.
fn is_blob_name(etag: &str) -> bool {
    (1..=128).contains(&etag.len())
        && !etag.starts_with(['.', '-'])
        && etag
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
}

/// Reads an entry of a list.
fn listed(file: Sibling) -> Result<ListedFile, String> {
    let path = file.rfilename;
    if !is_relative_path(&path) {
        return Err(format!("it lists a file `{path}`, which leads out of the folder"));
    }
    // A large file's etag is its SHA-256, any other file's is its Git hash.
    let (etag, n_bytes) = match file.lfs {
        Some(large) => (large.sha256, large.size.or(file.size)),
        None => (file.blob_id, file.size),
    };
    Ok(ListedFile {
        path,
        n_bytes: n_bytes.filter(|n_bytes| *n_bytes <= MAX_FILE_BYTES),
        etag: etag.filter(|etag| is_blob_name(etag)),
    })
}

/// Computes the edit distance of two words (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (a_idx, a) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = a_idx + 1;
        for (b_idx, b) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(a != *b);
            diagonal = row[b_idx + 1];
            row[b_idx + 1] = replaced.min(diagonal + 1).min(row[b_idx] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn listed(file: &Value) -> Result<ListedFile, String> {
        super::listed(serde_json::from_value(file.clone()).expect("an entry"))
    }

    #[test]
    fn a_list_cannot_name_what_lies_outside() {
        for path in [
            "../x",
            "/etc/passwd",
            "a/../../x",
            "",
            "a\\b",
            "c:x",
            "a//b",
            "a\u{202e}b",
        ] {
            assert!(listed(&json!({"rfilename": path})).is_err(), "{path}");
        }
        let large = json!({"rfilename": "a", "size": 1, "blobId": "p", "lfs": {"sha256": "s", "size": 9}});
        let file = listed(&large).unwrap();
        assert_eq!((file.etag.as_deref(), file.n_bytes), (Some("s"), Some(9)));
        let small = listed(&json!({"rfilename": "a", "size": 1, "blobId": "g"})).unwrap();
        assert_eq!((small.etag.as_deref(), small.n_bytes), (Some("g"), Some(1)));
        let hostile = listed(&json!({"rfilename": "a", "size": 1, "blobId": "../x"})).unwrap();
        assert_eq!(hostile.etag, None);
        let endless = listed(&json!({"rfilename": "a", "size": u64::MAX, "blobId": "g"})).unwrap();
        assert_eq!(endless.n_bytes, None);
    }

    #[test]
    fn near_names_differ_in_few_letters() {
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "ab"), 2);
        assert_eq!(distance("ab", "ab"), 0);
    }
}
