//! Sessions of every kind of memory, from an engine to a file and into another engine.

use std::{fs, io::Write as _, path::Path, time::Duration};

use tokenmill_backend::KvType;
use tokenmill_model::ModelOptions;
use tokenmill_sched::{Engine, EngineConfig, GenerateParams};
use tokenmill_testkit::{MEMORY_KINDS, Random, TinyModel};

use super::*;
use crate::test_engines::{IDENTITY, bits, executor, model, options, params, random_tokens};

const PAGE: usize = 16;

fn engine(model: &TinyModel, options: &ModelOptions) -> Engine {
    Engine::start(executor(model, options), EngineConfig::default())
}

fn owner(engine: &Engine) -> Owner<'_> {
    Owner {
        engine,
        identity: Some(IDENTITY),
    }
}

fn save(engine: &Engine, path: &Path, tokens: &[u32]) -> Result<SessionSize, SessionError> {
    let session = Session {
        tokens: tokens.to_vec(),
        notes: b"notes".to_vec(),
        cache_salt: 0,
    };
    let draft = owner(engine).begin(&session)?;
    let size = draft.size;
    write_atomically(path, |file| draft.write(file))?;
    assert_eq!(fs::metadata(path)?.len(), size.n_bytes);
    Ok(size)
}

fn restore(engine: &Engine, path: &Path) -> Result<SessionSize, SessionError> {
    SessionFile::open_at(path)?.restore(&owner(engine), 0)
}

/// Waits until nothing is held any more: the engine releases the pages of a handle in the background.
#[track_caller]
fn assert_nothing_held(engine: &Engine) {
    for _ in 0..500 {
        let stats = engine.stats();
        if (stats.n_pages_in_use, stats.n_window_pages_in_use) == (0, 0) {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("pages are held: {:?}", engine.stats());
}

#[test]
fn keys_and_values_of_few_bits_come_back_to_the_bit() {
    for kv_type in [KvType::Q4_0, KvType::E4M3] {
        come_back_to_the_bit(kv_type);
    }
}

fn come_back_to_the_bit(kv_type: KvType) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("few");
    let model = model(|descriptor| {
        descriptor.n_embd = 128;
        for rope in &mut descriptor.ropes {
            (rope.head_dim, rope.n_dims) = (32, 32);
        }
        for layer in &mut descriptor.layers {
            layer.attention_mut().head_dim_k = 32;
            layer.attention_mut().head_dim_v = 32;
        }
    });
    let options = ModelOptions {
        kv_type,
        ..options(80)
    };
    let first = engine(&model, &options);
    let begun = first.generate(&random_tokens(3, 130), &params(20)).unwrap();
    save(&first, &path, &begun.tokens).unwrap();
    let next = [&begun.tokens[..], &random_tokens(4, 9)].concat();
    let computed = engine(&model, &options).generate(&next, &params(20)).unwrap();
    let second = engine(&model, &options);
    restore(&second, &path).unwrap();
    let restored = second.generate(&next, &params(20)).unwrap();
    assert_eq!(restored.usage.cached_tokens, 144);
    assert_eq!(bits(&restored), bits(&computed));
}

#[test]
fn a_conversation_goes_on_from_a_file_to_the_bit() {
    let folder = tempfile::tempdir().unwrap();
    for (kind, (name, change)) in MEMORY_KINDS.iter().enumerate() {
        let model = model(*change);
        for n_prompt in [5, 96, 131, 200] {
            let path = folder.path().join(format!("{kind}-{n_prompt}"));
            let prompt = random_tokens(kind as u64, n_prompt);
            let first = engine(&model, &options(80));
            let answer = first.generate(&prompt, &params(45)).unwrap();
            let saved = save(&first, &path, &answer.tokens).unwrap();
            // The last token was never an input.
            let n_whole = (answer.tokens.len() - 1) / PAGE * PAGE;
            assert_eq!(
                (saved.n_tokens, saved.n_stored),
                (n_prompt + 45, n_whole),
                "{name}"
            );

            let turn = [&answer.tokens[..], &random_tokens(99, 7)].concat();
            let expected = first.generate(&turn, &params(40)).unwrap();
            let second = engine(&model, &options(80));
            assert_eq!(restore(&second, &path).unwrap(), saved, "{name}");
            let resumed = second.generate(&turn, &params(40)).unwrap();
            assert_eq!(bits(&resumed), bits(&expected), "{name}, {n_prompt} tokens");
            assert_eq!(resumed.usage.cached_tokens, n_whole, "{name}");

            // The memory that was restored can be saved again, to the byte.
            let again = folder.path().join("again");
            let third = engine(&model, &options(80));
            restore(&third, &path).unwrap();
            save(&third, &again, &answer.tokens).unwrap();
            assert!(fs::read(&again).unwrap() == fs::read(&path).unwrap(), "{name}");

            // Nothing is held any more.
            assert_nothing_held(&second);
        }
    }
}

#[test]
fn a_file_that_is_cut_damaged_or_foreign_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("session");
    let model = model(MEMORY_KINDS[8].1);
    let first = engine(&model, &options(80));
    let tokens = first
        .generate(&random_tokens(1, 100), &params(30))
        .unwrap()
        .tokens;
    save(&first, &path, &tokens).unwrap();
    let whole = fs::read(&path).unwrap();

    let second = engine(&model, &options(80));
    // The pool is full of other prefixes, which a file that is refused must not drive out.
    let others: Vec<Vec<u32>> = (0..12).map(|seed| random_tokens(seed + 50, 150)).collect();
    for other in &others {
        second.generate(other, &params(1)).unwrap();
    }
    let pages = |engine: &Engine| {
        let stats = engine.stats();
        (stats.n_pages_in_use, stats.n_pages_idle)
    };
    let before = pages(&second);
    let write = |bytes: &[u8]| fs::write(&path, bytes).unwrap();
    for len in [0, 7, 15, 16, 100, whole.len() / 2, whole.len() - 1] {
        write(&whole[..len]);
        let error = restore(&second, &path).unwrap_err();
        let is_right = matches!(error, SessionError::Cut { .. } | SessionError::NotASession);
        assert!(is_right, "{len}: {error}");
    }
    write(&[&whole[..], &[0]].concat());
    assert!(matches!(restore(&second, &path), Err(SessionError::Damaged)));
    let mut random = Random::new(4);
    for _ in 0..300 {
        let mut damaged = whole.clone();
        damaged[random.below(whole.len())] ^= 1 << random.below(8);
        write(&damaged);
        assert!(restore(&second, &path).is_err());
    }
    write(b"GGUF and whatever else");
    assert!(matches!(restore(&second, &path), Err(SessionError::NotASession)));

    write(&whole);
    let other = Owner {
        engine: &second,
        identity: Some(IDENTITY + 1),
    };
    let opened = || SessionFile::open_at(&path).unwrap();
    assert!(matches!(
        opened().restore(&other, 0),
        Err(SessionError::OtherModel)
    ));
    let nobody = Owner {
        engine: &second,
        identity: None,
    };
    assert!(matches!(
        opened().restore(&nobody, 0),
        Err(SessionError::Unidentified)
    ));
    let exact = ModelOptions {
        kv_type: KvType::F32,
        ..options(80)
    };
    let of_other_type = engine(&model, &exact);
    assert!(matches!(
        restore(&of_other_type, &path),
        Err(SessionError::OtherTypes { ref expected, .. }) if expected == "f32 and f32"
    ));
    let short = ModelOptions {
        n_ctx: Some(120),
        ..options(80)
    };
    assert!(matches!(
        restore(&engine(&model, &short), &path),
        Err(SessionError::TooLong {
            n_tokens: 130,
            n_ctx: 120
        })
    ));
    let small = ModelOptions {
        n_pages: Some(6),
        n_ctx: Some(512),
        ..options(80)
    };
    let cramped = engine(&model, &small);
    assert!(matches!(
        restore(&cramped, &path),
        Err(SessionError::Engine(
            tokenmill_sched::EngineError::NoRoomForPrefix { .. }
        ))
    ));
    fs::create_dir(folder.path().join("folder")).unwrap();
    let of_folder = SessionFile::open(folder.path().join("folder"))
        .unwrap_err()
        .to_string();
    assert!(
        of_folder.ends_with("folder: it is not a regular file"),
        "{of_folder}"
    );

    // Nothing was found of all that, and the conversation is computed.
    assert_nothing_held(&second);
    assert_eq!(pages(&second), before);
    let n_cached = |tokens: &[u32]| second.generate(tokens, &params(1)).unwrap().usage.cached_tokens;
    assert!(n_cached(&others[11]) > 0, "the newest was driven out");
    let computed = second.generate(&tokens, &params(20)).unwrap();
    assert_eq!(computed.usage.cached_tokens, 0);
    let expected = first.generate(&tokens, &params(20)).unwrap();
    assert_eq!(bits(&computed), bits(&expected));
}

/// With right lengths and sums, as someone would write them who wants the file to be read.
#[test]
fn any_memory_under_right_sums_is_no_danger() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("session");
    for (name, change) in MEMORY_KINDS {
        let model = model(*change);
        let first = engine(&model, &options(80));
        let tokens = first.generate(&random_tokens(1, 60), &params(10)).unwrap().tokens;
        save(&first, &path, &tokens).unwrap();
        let others = random_tokens(2, 50);
        let expected = bits(&first.generate(&others, &params(5)).unwrap());
        let session = SessionFile::open_at(&path).unwrap();
        let (n_stored, header) = (session.n_stored(), session.header);
        let format = first.memory_format().unwrap();
        // NaN as F16 and as F32, an infinite F16, the largest numbers, and anything.
        let patterns: [Option<[u8; 4]>; 5] = [
            Some([0xff; 4]),
            Some([0, 0, 0xc0, 0x7f]),
            Some([0, 0x7c, 0, 0x7c]),
            Some([0xff, 0x7b, 0x7f, 0x7f]),
            None,
        ];
        let mut random = Random::new(8);
        for pattern in patterns {
            let mut file = fs::File::create(&path).unwrap();
            let head = header.to_bytes().unwrap();
            file.write_all(&head).unwrap();
            let mut sums = EntrySums::after(&head);
            for entry in &header.entries {
                let byte = |at: usize| pattern.map_or_else(|| random.below(256) as u8, |bytes| bytes[at % 4]);
                let bytes: Vec<u8> = (0..entry.kind.n_bytes(format)).map(byte).collect();
                sums.write(&mut file, &bytes).unwrap();
            }
            let second = engine(&model, &options(80));
            restore(&second, &path).unwrap();
            // Tokens, or an error of this request; others are as ever.
            if let Ok(answer) = second.generate(&tokens, &params(5)) {
                assert_eq!(answer.usage.cached_tokens, n_stored, "{name}");
            }
            let computed = second.generate(&others, &params(5)).unwrap();
            assert_eq!(bits(&computed), expected, "{name}");
            assert_nothing_held(&second);
        }
    }
}

/// A header under a right sum, with a body that does not fit it, or one of right sums and any bytes.
#[test]
fn a_header_that_lies_is_refused_or_does_no_harm() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("session");
    let model = model(MEMORY_KINDS[8].1);
    let first = engine(&model, &options(80));
    let tokens = first.generate(&random_tokens(1, 60), &params(10)).unwrap().tokens;
    save(&first, &path, &tokens).unwrap();
    let header = SessionFile::open_at(&path).unwrap().header;
    let format = first.memory_format().unwrap();
    let mut random = Random::new(8);
    let (mut n_restored, mut n_refused) = (0, 0);
    for round in 0..400 {
        let mut header = header.clone();
        let at = random.below(header.entries.len());
        match random.below(8) {
            0 => header.entries.truncate(at),
            1 => header.entries.rotate_left(at + 1),
            2 => header.entries[at].key = PageKey::from_number(random.below(9) as u128),
            3 => header.entries[at].key = PageKey::from_number(u128::MAX - random.below(2) as u128),
            4 => header.entries[at].kind = KeptKind::ALL[random.below(3)],
            5 => drop(header.entries.remove(at)),
            6 => header.tokens[random.below(tokens.len())] = u32::MAX,
            _ => header.tokens.truncate(random.below(tokens.len())),
        }
        let head = header.to_bytes().unwrap();
        let mut file = fs::File::create(&path).unwrap();
        file.write_all(&head).unwrap();
        let has_right_sums = round % 2 == 1;
        let mut bytes =
            |n_bytes: usize| -> Vec<u8> { (0..n_bytes).map(|_| random.below(256) as u8).collect() };
        if has_right_sums {
            let mut sums = EntrySums::after(&head);
            for entry in &header.entries {
                sums.write(&mut file, &bytes(entry.kind.n_bytes(format))).unwrap();
            }
        } else {
            file.write_all(&bytes((header.file_bytes(format) as usize) - head.len()))
                .unwrap();
        }
        let second = engine(&model, &options(80));
        let restored = restore(&second, &path);
        assert_nothing_held(&second);
        if has_right_sums {
            n_restored += u32::from(restored.is_ok());
            n_refused += u32::from(restored.is_err());
        } else {
            // A file without entries has no sums that could be wrong.
            assert_eq!(
                restored.is_ok(),
                header.entries.is_empty(),
                "{round}: {restored:?}"
            );
        }
        let n_cached = restored.map_or(0, |size| size.n_stored);
        // Tokens, or an error of this request.
        if let Ok(computed) = second.generate(&tokens, &params(5)) {
            assert!(computed.usage.cached_tokens <= n_cached, "{round}");
            assert_eq!(computed.generated.len(), 5);
        }
    }
    assert!(n_restored > 3 && n_refused > 100, "{n_restored} {n_refused}");
}

#[test]
fn a_session_is_found_under_its_salt_alone_and_can_be_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("session");
    let model = model(MEMORY_KINDS[0].1);
    let first = engine(&model, &options(80));
    let tokens = first.generate(&random_tokens(1, 60), &params(10)).unwrap().tokens;
    save(&first, &path, &tokens).unwrap();

    let second = engine(&model, &options(80));
    SessionFile::open_at(&path)
        .unwrap()
        .restore(&owner(&second), 9)
        .unwrap();
    let cached = |cache_salt: u64| {
        let params = GenerateParams {
            cache_salt,
            max_tokens: Some(1),
            uses_prefix_cache: true,
            ..params(1)
        };
        second.generate(&tokens, &params).unwrap().usage.cached_tokens
    };
    assert_eq!(cached(0), 0);
    assert_eq!(cached(9), 64);
    second.forget_prefix(&tokens, 9).unwrap();
    assert_eq!(cached(9), 0);
}

#[test]
fn saving_goes_on_beside_answers() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(MEMORY_KINDS[8].1);
    let alone = engine(&model, &options(80));
    let prompts: Vec<Vec<u32>> = (0..6).map(|seed| random_tokens(seed, 90)).collect();
    let expected: Vec<_> = (prompts.iter())
        .map(|prompt| bits(&alone.generate(prompt, &params(60)).unwrap()))
        .collect();
    let shared = engine(&model, &options(80));
    let kept = shared.generate(&prompts[0], &params(60)).unwrap().tokens;
    std::thread::scope(|scope| {
        let saver = scope.spawn(|| {
            let (mut n_saved, mut n_restored) = (0, 0);
            for round in 0..20 {
                let path = folder.path().join(format!("{}", round % 2));
                match save(&shared, &path, &kept) {
                    Ok(_) => {
                        n_saved += 1;
                        SessionFile::open_at(&path).unwrap();
                        // There may be no room for it at the moment.
                        n_restored += u32::from(restore(&shared, &path).is_ok());
                    }
                    Err(SessionError::Engine(_)) => {}
                    Err(other) => panic!("{other}"),
                }
            }
            (n_saved, n_restored)
        });
        for _ in 0..3 {
            let outputs = shared.batch_generate(&prompts, &params(60)).unwrap();
            for (output, expected) in outputs.into_iter().zip(&expected) {
                assert_eq!(bits(&output.unwrap()), *expected);
            }
        }
        let (n_saved, n_restored) = saver.join().unwrap();
        assert!(
            n_saved > 0 && n_restored > 0,
            "{n_saved} saved, {n_restored} restored"
        );
    });
    assert_nothing_held(&shared);
}

#[test]
fn a_reader_that_is_forgotten_does_not_keep_a_draining_engine() {
    let model = model(|_| {});
    let engine = engine(&model, &options(80));
    let tokens = random_tokens(3, 40);
    engine.generate(&tokens, &params(1)).unwrap();
    let forgotten = engine.read_prefix(&tokens, 0).unwrap();
    engine.drain();
    assert!(
        !engine.wait_for_end(Duration::from_secs(1)),
        "it waits for the reader"
    );
    assert!(engine.wait_for_end(Duration::from_secs(30)), "but not for ever");
    drop(forgotten);
}
