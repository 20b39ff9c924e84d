//! Feeds bytes to the parser of session files: as a file, and as what a right sum covers.
//!
//! ```text
//! cd crates/tokenmill && mkdir -p fuzz/corpus/session
//! cargo +nightly fuzz run session -- -max_total_time=600 -max_len=4096
//! ```
#![no_main]

use libfuzzer_sys::fuzz_target;
use tokenmill::sessions::SessionHeader;

fuzz_target!(|bytes: &[u8]| {
    let _ = SessionHeader::read(&mut &bytes[..], bytes.len() as u64);
    if let Ok(header) = SessionHeader::parse(bytes) {
        let file = header.to_bytes().expect("a header that was read is not too large");
        let read = SessionHeader::read(&mut &file[..], file.len() as u64);
        assert_eq!(read.expect("what was written is read"), header);
    }
});
