//! Conversations and prompt prefixes in files, together with the keys and values that were computed for them.

pub use crate::{
    folder_lock::FolderLock,
    page_file::PageFileHeader,
    prefix_folder::{PrefixFolder, PrefixFolderFigures},
    session::{Session, SessionFile, SessionSize, remove_unfinished_sessions},
    session_error::SessionError,
};
