//! [`Payloads`]: batches of page events as vLLM writes them, in `MessagePack`.
//!
//! Invariant: the names, their order and their types are vLLM's, so that readers of vLLM's events can read
//! these. A batch is `[time, [events], rank]`; an event is a map, or an array of the same values.
//!
//! Source: `vllm/distributed/kv_events.py`, with the maps of its pull request 42892.

use std::{collections::hash_map::RandomState, hash::BuildHasher as _, time::Duration};

use rmp::encode::{write_array_len, write_f64, write_map_len, write_nil, write_str, write_uint};
use tokenmill_backend::{ExecutorLimits, PAGE_TOKENS, PageGroup};
use tokenmill_sched::{PageEvent, PageTier, StoredPage};

use super::config::EventEncoding;

/// Writes payloads.
#[derive(Debug)]
pub(super) struct Payloads {
    encoding: EventEncoding,
    /// How far the layers of each group see.
    windows: [Option<usize>; PageGroup::ALL.len()],
    /// Names salts: a salt itself is a hash of what clients send, and who reads it could try which keys and words it is of.
    names: RandomState,
}

/// An event as it is published. Neighbours that say the same of several pages are one.
#[derive(Debug, PartialEq, Eq)]
enum Published {
    Stored {
        pages: Vec<StoredPage>,
    },
    Removed {
        hashes: Vec<u64>,
        group: PageGroup,
        tier: PageTier,
    },
    Cleared,
}

impl Payloads {
    pub(super) fn new(encoding: EventEncoding, limits: &ExecutorLimits) -> Self {
        let mut windows = [None; PageGroup::ALL.len()];
        for (group, limits) in limits.groups() {
            windows[group.index()] = limits.window;
        }
        Self {
            encoding,
            windows,
            names: RandomState::new(),
        }
    }

    /// The payload of a batch; `since_1970` is its time.
    pub(super) fn write(&self, since_1970: Duration, events: &[PageEvent]) -> Vec<u8> {
        let published = join(events);
        let mut payload = Payload(Vec::with_capacity(events.len() * 160));
        payload.array(3);
        payload.float(since_1970.as_secs_f64());
        payload.array(published.len());
        for event in &published {
            self.event(event, &mut payload);
        }
        // The rank of the replica among those that share a process's address: there is one.
        payload.uint(0);
        payload.0
    }

    fn event(&self, event: &Published, payload: &mut Payload) {
        match event {
            Published::Stored { pages } => self.stored(pages, payload),
            Published::Removed { hashes, group, tier } => {
                let mut fields = Fields::new(self.encoding, 3, "BlockRemoved", payload);
                fields.key("block_hashes").uints(hashes.iter().copied());
                fields.key("medium").text(medium(*tier));
                fields.key("group_idx").uint(group.index() as u64);
            }
            Published::Cleared => {
                Fields::new(self.encoding, 0, "AllBlocksCleared", payload);
            }
        }
    }

    fn name_of_salt(&self, salt: u64) -> String {
        format!("{:016x}", self.names.hash_one(salt))
    }

    fn stored(&self, pages: &[StoredPage], payload: &mut Payload) {
        let first = &pages[0];
        let window = self.windows[first.group.index()];
        // A map omits a missing field; an array keeps an empty place for it.
        let has_window = window.is_some() || self.encoding == EventEncoding::Array;
        let mut fields = Fields::new(
            self.encoding,
            10 + usize::from(has_window),
            "BlockStored",
            payload,
        );
        fields
            .key("block_hashes")
            .uints(pages.iter().map(|page| page.key));
        match first.parent {
            Some(parent) => fields.key("parent_block_hash").uint(parent),
            None => fields.key("parent_block_hash").nil(),
        }
        let tokens = fields.key("token_ids");
        tokens.array(pages.len() * PAGE_TOKENS);
        for &token in pages.iter().flat_map(|page| &page.tokens) {
            tokens.uint(u64::from(token));
        }
        fields.key("block_size").uint(PAGE_TOKENS as u64);
        match first.adapter {
            Some(adapter) => fields.key("lora_id").uint(u64::from(adapter.number())),
            None => fields.key("lora_id").nil(),
        }
        fields.key("medium").text(medium(first.tier));
        fields.key("lora_name").nil();
        let extra = fields.key("extra_keys");
        extra.array(pages.len());
        for page in pages {
            // As in vLLM, media are said of the pages that hold them, and a salt of the first page, from which it goes into all that
            // follow.
            let media = page.media.map(|content| format!("{content:032x}"));
            let has_salt = page.parent.is_none() && page.salt != 0;
            let salt = has_salt.then(|| self.name_of_salt(page.salt));
            if media.is_none() && salt.is_none() {
                extra.nil();
                continue;
            }
            extra.array(usize::from(media.is_some()) + usize::from(salt.is_some()));
            for key in media.into_iter().chain(salt) {
                extra.text(&key);
            }
        }
        fields.key("group_idx").uint(first.group.index() as u64);
        let kind = fields.key("kv_cache_spec_kind");
        kind.text(window.map_or("full_attention", |_| "sliding_window"));
        if has_window {
            let size = fields.key("kv_cache_spec_sliding_window");
            match window {
                Some(window) => size.uint(window as u64),
                None => size.nil(),
            }
        }
    }
}

/// Returns vLLM's name for the memory that holds a page. Pages that steps compute on are the GPU's, even
/// without one.
fn medium(tier: PageTier) -> &'static str {
    match tier {
        PageTier::Pool => "GPU",
        PageTier::Host => "CPU",
    }
}

/// Joins pages that follow each other, and removals.
fn join(events: &[PageEvent]) -> Vec<Published> {
    let mut published: Vec<Published> = Vec::new();
    for event in events {
        match (published.last_mut(), event) {
            (Some(Published::Stored { pages }), PageEvent::Stored(page))
                if pages.last().is_some_and(|last| {
                    page.parent == Some(last.key) && (page.group, page.tier) == (last.group, last.tier)
                }) =>
            {
                pages.push(*page);
            }
            (_, PageEvent::Stored(page)) => published.push(Published::Stored { pages: vec![*page] }),
            (last, &PageEvent::Removed { key, group, tier }) => match last {
                Some(Published::Removed {
                    hashes,
                    group: last_group,
                    tier: last_tier,
                }) if (*last_group, *last_tier) == (group, tier) => hashes.push(key),
                _ => published.push(Published::Removed {
                    hashes: vec![key],
                    group,
                    tier,
                }),
            },
            (_, PageEvent::Cleared) => published.push(Published::Cleared),
        }
    }
    published
}

/// The values of an event, with their names in a map and without in an array.
struct Fields<'a> {
    encoding: EventEncoding,
    payload: &'a mut Payload,
}

impl<'a> Fields<'a> {
    fn new(encoding: EventEncoding, n_fields: usize, tag: &str, payload: &'a mut Payload) -> Self {
        match encoding {
            EventEncoding::Map => payload.map(1 + n_fields),
            EventEncoding::Array => payload.array(1 + n_fields),
        }
        let mut fields = Self { encoding, payload };
        fields.key("type").text(tag);
        fields
    }

    /// Begins the value of a name.
    fn key(&mut self, name: &str) -> &mut Payload {
        if self.encoding == EventEncoding::Map {
            self.payload.text(name);
        }
        self.payload
    }
}

/// Bytes of `MessagePack`.
struct Payload(Vec<u8>);

/// Why writing succeeds.
const IN_MEMORY: &str = "a vector takes all bytes";

impl Payload {
    fn array(&mut self, len: usize) {
        write_array_len(&mut self.0, len as u32).expect(IN_MEMORY);
    }

    fn map(&mut self, len: usize) {
        write_map_len(&mut self.0, len as u32).expect(IN_MEMORY);
    }

    fn uint(&mut self, value: u64) {
        write_uint(&mut self.0, value).expect(IN_MEMORY);
    }

    fn uints(&mut self, values: impl ExactSizeIterator<Item = u64>) {
        self.array(values.len());
        for value in values {
            self.uint(value);
        }
    }

    fn float(&mut self, value: f64) {
        write_f64(&mut self.0, value).expect(IN_MEMORY);
    }

    fn text(&mut self, text: &str) {
        write_str(&mut self.0, text).expect(IN_MEMORY);
    }

    fn nil(&mut self) {
        write_nil(&mut self.0).expect(IN_MEMORY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes that `msgspec` 0.22.0 writes for vLLM's structs with these values.
    const MAPS: &str = "93cb3ff80000000000009481a474797065b0416c6c426c6f636b73436c65617265648ba474797065ab426c6f636b53746f726564ac626c\
        6f636b5f68617368657392cf112233445566778809b1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f696473dc00200001\
        02030405060708090a0b0c0d0e0fce00011170ce00011170ce00011170ce00011170ce00011170ce00011170ce00011170ce00011170ce\
        00011170ce00011170ce00011170ce00011170ce00011170ce00011170ce00011170ce00011170aa626c6f636b5f73697a6510a76c6f72\
        615f6964c0a66d656469756da3475055a96c6f72615f6e616d65c0aa65787472615f6b6579739291b03030303030303030303030303030\
        6666c0a967726f75705f69647800b26b765f63616368655f737065635f6b696e64ae66756c6c5f617474656e74696f6e8ca474797065ab\
        426c6f636b53746f726564ac626c6f636b5f6861736865739107b1706172656e745f626c6f636b5f6861736809a9746f6b656e5f696473\
        dc0010cd012ccd012ccd012ccd012ccd012ccd012ccd012ccd012ccd012ccd012ccd012ccd012ccd012ccd012ccd012ccd012caa626c6f\
        636b5f73697a6510a76c6f72615f6964c0a66d656469756da3435055a96c6f72615f6e616d65c0aa65787472615f6b65797391c0a96772\
        6f75705f69647801b26b765f63616368655f737065635f6b696e64ae736c6964696e675f77696e646f77bc6b765f63616368655f737065\
        635f736c6964696e675f77696e646f77cd020084a474797065ac426c6f636b52656d6f766564ac626c6f636b5f686173686573920506a6\
        6d656469756da3475055a967726f75705f6964780000";
    const ARRAYS: &str = "93cb3ff80000000000009491b0416c6c426c6f636b73436c65617265649cab426c6f636b53746f72656492cf112233445566778809c0dc\
        0020000102030405060708090a0b0c0d0e0fce00011170ce00011170ce00011170ce00011170ce00011170ce00011170ce00011170ce00\
        011170ce00011170ce00011170ce00011170ce00011170ce00011170ce00011170ce00011170ce0001117010c0a3475055c09291b03030\
        3030303030303030303030306666c000ae66756c6c5f617474656e74696f6ec09cab426c6f636b53746f726564910709dc0010cd012ccd\
        012ccd012ccd012ccd012ccd012ccd012ccd012ccd012ccd012ccd012ccd012ccd012ccd012ccd012ccd012c10c0a3435055c091c001ae\
        736c6964696e675f77696e646f77cd020094ac426c6f636b52656d6f766564920506a34750550000";

    #[test]
    fn batches_are_written_as_vllm_writes_them() {
        let page = |key, parent, salt, tokens, group, tier| {
            PageEvent::Stored(StoredPage {
                key,
                parent,
                salt,
                adapter: None,
                media: None,
                tokens,
                group,
                tier,
            })
        };
        let removed = |key| PageEvent::Removed {
            key,
            group: PageGroup::Main,
            tier: PageTier::Pool,
        };
        let first = 0x1122_3344_5566_7788;
        let counted = std::array::from_fn(|idx| idx as u32);
        let events = [
            PageEvent::Cleared,
            page(first, None, 255, counted, PageGroup::Main, PageTier::Pool),
            page(
                9,
                Some(first),
                255,
                [70_000; PAGE_TOKENS],
                PageGroup::Main,
                PageTier::Pool,
            ),
            page(
                7,
                Some(9),
                255,
                [300; PAGE_TOKENS],
                PageGroup::Window,
                PageTier::Host,
            ),
            removed(5),
            removed(6),
        ];
        for (encoding, expected) in [(EventEncoding::Map, MAPS), (EventEncoding::Array, ARRAYS)] {
            let payloads = Payloads {
                encoding,
                windows: [None, Some(512)],
                names: RandomState::new(),
            };
            // Theirs was of this salt.
            let [theirs, ours] = [format!("{:016x}", 255), payloads.name_of_salt(255)].map(|name| {
                let bytes: Vec<String> = name.bytes().map(|byte| format!("{byte:02x}")).collect();
                bytes.concat()
            });
            let expected = expected.replace(&theirs, &ours);
            let written = payloads.write(Duration::from_millis(1500), &events);
            let bytes = (0..expected.len()).step_by(2);
            let bytes = bytes.map(|at| u8::from_str_radix(&expected[at..at + 2], 16).unwrap());
            assert_eq!(written, bytes.collect::<Vec<u8>>(), "{encoding:?}");
        }
    }

    #[test]
    fn media_are_said_of_each_page_and_a_salt_of_the_first() {
        let page = |key, parent, media| {
            PageEvent::Stored(StoredPage {
                key,
                parent,
                salt: 255,
                adapter: None,
                media,
                tokens: [1; PAGE_TOKENS],
                group: PageGroup::Main,
                tier: PageTier::Pool,
            })
        };
        let events = [
            page(1, None, Some(0xabc)),
            page(2, Some(1), Some(0xabc)),
            page(3, Some(2), None),
        ];
        let payloads = Payloads {
            encoding: EventEncoding::Map,
            windows: [None, None],
            names: RandomState::new(),
        };
        let written = payloads.write(Duration::ZERO, &events);
        let media = [&b"\xd9\x20"[..], format!("{:032x}", 0xabc).as_bytes()].concat();
        // A name of the salt, and not the salt.
        let name = payloads.name_of_salt(255);
        assert_ne!(name, format!("{:016x}", 255));
        let salt = [&b"\xb0"[..], name.as_bytes()].concat();
        let expected = [
            &b"\xaaextra_keys\x93\x92"[..],
            &media[..],
            &salt,
            b"\x91",
            &media,
            b"\xc0",
        ]
        .concat();
        assert!(
            written.windows(expected.len()).any(|part| part == expected),
            "{written:02x?}"
        );
    }
}
