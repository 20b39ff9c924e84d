//! Tiers of the prefix cache below the memory of a simulated GPU: main memory (`--kv-host-tokens`)
//! and a folder (`--prefix-dir`). Pages from these tiers continue an answer as recomputed ones do.

use std::path::Path;

use serde_json::json;

use crate::{gpu::driver_folder, server::Server, support::arg};

const LONG: &str = "Once upon a time there was a little girl who lived in a small house near the forest with her mother and \
                    her cat and a big dog and they all went out to play in the sun";
/// Prompts that need its place together.
const OTHERS: [&str; 2] = [
    "The boy saw a red ball on the grass and he ran to get it but the ball went down the hill and into the water where a \
     fish and a frog looked at it for a long time",
    "One day a big bear came to the town because he wanted to eat some honey and the people were afraid of him but a man \
     gave him a pot of it and the bear was happy",
];

/// Starts a server with memory for one or two of the prompts. Pages that are found again have the same bits
/// as recomputed ones.
fn serve(device: &str, extra: &[&str]) -> Server {
    let variables = [
        ("LD_LIBRARY_PATH", driver_folder().path()),
        ("TOKENMILL_SIM_DRIVER", Path::new("")),
        ("TOKENMILL_CUDA_NO_CHECK", Path::new("1")),
    ];
    let args = [
        "demo",
        "--device",
        device,
        "-c",
        "96",
        "--kv-cache-tokens",
        "96",
        "--batch-invariant",
    ];
    Server::start_in(&variables, &[&args[..], extra].concat())
}

/// The text of an answer of four tokens, and how many tokens of its prompt were found.
#[track_caller]
fn complete(server: &Server, prompt: &str) -> (String, u64) {
    let body = json!({ "prompt": prompt, "max_tokens": 4, "temperature": 0, "ignore_eos": true });
    let (status, reply) = server.ask("POST", "/v1/completions", &body.to_string());
    assert_eq!(status, 200, "{reply}");
    let text = reply["choices"][0]["text"].as_str().expect("a text").to_owned();
    let cached = &reply["usage"]["prompt_tokens_details"]["cached_tokens"];
    (text, cached.as_u64().unwrap_or_default())
}

/// A figure of `/metrics`.
#[track_caller]
fn metric(server: &Server, name: &str) -> u64 {
    let (_, text) = server.ask_text("GET", "/metrics", "");
    let line = text.lines().find(|line| {
        line.strip_prefix(name)
            .is_some_and(|rest| rest.starts_with(['{', ' ']))
    });
    let value = line.and_then(|line| line.rsplit(' ').next()?.parse().ok());
    value.unwrap_or_else(|| panic!("{name} in {text}"))
}

#[test]
fn what_a_gpu_has_no_room_for_comes_back_from_main_memory() {
    let without = serve("cuda", &[]);
    let with = serve("cuda", &["--kv-host-tokens", "512"]);
    let longer = format!("{LONG} until");
    for server in [&without, &with] {
        assert_eq!(complete(server, LONG).1, 0);
        for other in OTHERS {
            assert_eq!(complete(server, other).1, 0);
        }
    }
    let (computed, n_kept) = complete(&without, &longer);
    let (found, n_found) = complete(&with, &longer);
    assert_eq!(found, computed);
    assert!(n_kept < n_found && n_found >= 32, "{n_kept} {n_found}");
}

#[test]
fn what_a_gpu_has_computed_comes_back_from_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let in_folder = ["--prefix-dir", arg(folder.path())];
    let without = serve("cuda", &[]);
    let longer = format!("{LONG} until");
    let (expected, _) = complete(&without, &longer);
    let first = serve("cuda", &in_folder);
    assert_eq!(complete(&first, LONG).1, 0);
    first.end();
    // Another process, in which it then loses its place to other prompts.
    let second = serve("cuda", &in_folder);
    let mut n_read = 1;
    for _ in 0..2 {
        let (found, n_found) = complete(&second, &longer);
        assert_eq!(found, expected);
        assert!(n_found >= 32, "{n_found}");
        let n_pages = metric(&second, "tokenmill_prefix_dir_read_pages_total");
        // Pages that other prompts did not displace stay on the GPU.
        assert!(n_pages > n_read, "{n_pages} after {n_read}");
        n_read = n_pages;
        for other in OTHERS {
            complete(&second, other);
        }
    }
    assert_eq!(metric(&second, "tokenmill_prefix_dir_refused_files_total"), 0);
    second.end();
    // The CPU keeps its memory otherwise, and finds nothing.
    let on_cpu = serve("cpu", &in_folder);
    assert_eq!(complete(&on_cpu, &longer), (expected, 0));
}
