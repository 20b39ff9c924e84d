//! Speculative decoding seen from outside: the same answers, and metrics that count the drafts.

use serde_json::{Value, json};
use tokenmill_sched::{EngineConfig, Speculation};

use crate::server::{Setup, TestServer};

const COMPLETIONS: &str = "/v1/completions";

async fn server(speculation: Speculation) -> Option<TestServer> {
    let engine = EngineConfig {
        speculation,
        ..EngineConfig::default()
    };
    TestServer::start_with(Setup {
        engine,
        drafts: matches!(speculation, Speculation::Draft { .. }),
        ..Setup::default()
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_are_the_same_and_say_what_was_guessed() {
    let Some(plain) = server(Speculation::Off).await else {
        return;
    };
    for (speculation, drafter) in [
        (Speculation::Ngram { max_draft: 6 }, "ngram"),
        (Speculation::Draft { max_draft: 6 }, "draft"),
    ] {
        compare(&plain, &server(speculation).await.unwrap(), drafter).await;
    }
}

/// Compares a server that guesses with one that does not.
async fn compare(plain: &TestServer, guessing: &TestServer, drafter: &str) {
    let text = "The cat sat on the mat. The dog sat on the mat. The cat sat on the";
    let bodies = [
        json!({ "prompt": text, "max_tokens": 40, "temperature": 0, "logprobs": 2 }),
        json!({ "prompt": text, "max_tokens": 40, "temperature": 0.7, "seed": 3, "n": 3 }),
        json!({ "prompt": text, "max_tokens": 40, "temperature": 0, "stop": ["mat"], "stream": false }),
        // The same token again and again: all guesses but the first are right.
        json!({ "prompt": text, "max_tokens": 40, "temperature": 0, "logit_bias": { "40": 100 } }),
    ];
    let (mut n_drafted, mut n_accepted) = (0, 0);
    for body in &bodies {
        let expected = plain.post(COMPLETIONS, body).await.json();
        let found = guessing.post(COMPLETIONS, body).await.json();
        assert_eq!(found["choices"], expected["choices"], "{body}");
        let counts = ["prompt_tokens", "completion_tokens"].map(|name| &found["usage"][name]);
        assert_eq!(
            counts,
            ["prompt_tokens", "completion_tokens"].map(|name| &expected["usage"][name])
        );
        assert_eq!(expected["timings"]["draft_n"], Value::Null, "nothing was guessed");
        n_drafted += found["timings"]["draft_n"].as_u64().unwrap_or(0);
        n_accepted += found["timings"]["draft_n_accepted"].as_u64().unwrap_or(0);
    }
    assert!(
        n_accepted > 30 && n_drafted >= n_accepted,
        "{n_accepted} of {n_drafted}"
    );

    let reply = guessing.get("/metrics").await;
    let value = |name: &str| -> f64 {
        (reply.text().lines())
            .filter_map(|line| line.strip_prefix(name)?.rsplit_once(' '))
            .filter(|(labels, _)| labels.is_empty() || labels.starts_with('{'))
            .map(|(_, value)| value.parse::<f64>().unwrap())
            .sum()
    };
    let accepted = value("vllm:spec_decode_num_accepted_tokens_total");
    assert!(accepted >= n_accepted as f64);
    assert_eq!(
        value("vllm:spec_decode_num_accepted_tokens_per_pos_total"),
        accepted
    );
    assert!(value("vllm:spec_decode_num_draft_tokens_total") >= n_drafted as f64);
    assert!(value("vllm:spec_decode_num_drafts_total") > 0.0);
    assert_eq!(value("tokenmill_accepted_draft_tokens_total"), accepted);
    // Each accepted token saved a part of a step. All answers here end by their length or a stop string, so that no step gave nothing.
    let (n_rows, n_tokens) = (
        value("tokenmill_sampling_rows_total"),
        value("tokenmill_generated_tokens_total"),
    );
    let per_step = value("tokenmill_tokens_per_step");
    assert!((per_step - n_tokens / n_rows).abs() < 1e-9, "{per_step}");
    assert!((1.05..=13.0).contains(&per_step), "{per_step}");
    let of_plain = plain.get("/metrics").await;
    let line = of_plain
        .text()
        .lines()
        .find(|line| line.starts_with("tokenmill_tokens_per_step{"))
        .unwrap();
    let alone: f64 = line.rsplit_once(' ').unwrap().1.parse().unwrap();
    assert!((0.9..=1.0).contains(&alone), "{line}");
    let at_first = "vllm:spec_decode_num_accepted_tokens_per_pos_total{model_name=\"demo\",position=\"0\"}";
    assert!(value(at_first) > 0.0);
    for (name, all) in [
        (
            "tokenmill_drafter_tokens_total",
            value("tokenmill_draft_tokens_total"),
        ),
        ("tokenmill_drafter_accepted_tokens_total", accepted),
    ] {
        let by = |kind: &str| value(&format!("{name}{{model_name=\"demo\",drafter=\"{kind}\"}}"));
        // Two of the bodies have the same answer, up to where it ends.
        let of_earlier = by("earlier");
        assert_eq!(of_earlier > 0.0, drafter == "ngram", "{name}: {of_earlier}");
        assert_eq!(by(drafter) + of_earlier, all, "{name}");
        assert_eq!(by("ngram") + of_earlier + by("draft"), all, "{name}");
    }
}

/// The text of a completion, how it ended, and guesses that came out.
async fn text_of(server: &TestServer, body: &Value, is_streamed: bool) -> (String, Value, u64) {
    let mut body = body.clone();
    if !is_streamed {
        let reply = server.post_ok(COMPLETIONS, &body).await;
        let choice = &reply["choices"][0];
        let n_accepted = reply["timings"]["draft_n_accepted"].as_u64().unwrap_or(0);
        return (
            choice["text"].as_str().unwrap().to_owned(),
            choice["finish_reason"].clone(),
            n_accepted,
        );
    }
    body["stream"] = json!(true);
    let reply = server.post(COMPLETIONS, &body).await;
    let chunks = reply
        .text()
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok());
    let (mut text, mut reason) = (String::new(), Value::Null);
    for chunk in chunks {
        text.push_str(chunk["choices"][0]["text"].as_str().unwrap_or_default());
        if !chunk["choices"][0]["finish_reason"].is_null() {
            reason = chunk["choices"][0]["finish_reason"].clone();
        }
    }
    (text, reason, 0)
}

#[tokio::test(flavor = "multi_thread")]
async fn stop_strings_cut_the_same_text_with_guesses_and_without() {
    let Some(plain) = server(Speculation::Off).await else {
        return;
    };
    let guessing = server(Speculation::Ngram { max_draft: 12 }).await.unwrap();
    // At temperature 0 the model says its first sentence twice, and then begins another with the same words.
    let whole =
        json!({ "prompt": "Tell me a story.", "max_tokens": 48, "temperature": 0, "ignore_eos": true });
    let (text, _, _) = text_of(&plain, &whole, false).await;
    let starts: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
    assert!(starts.len() > 90, "{text}");
    let mut n_accepted = 0;
    // Strings that lie in the text: within a token, over several, and behind a beginning that comes before as well.
    for (at, n_chars) in [(9, 1), (17, 3), (25, 7), (34, 12), (41, 2), (50, 9), (76, 7)] {
        let stop = &text[starts[at]..starts[at + n_chars]];
        let cut = &text[..text.find(stop).unwrap()];
        let mut body = whole.clone();
        body["stop"] = json!([stop, "a string that never comes"]);
        for is_streamed in [false, true] {
            let found = text_of(&guessing, &body, is_streamed).await;
            assert_eq!(
                (&found.0[..], &found.1),
                (cut, &json!("stop")),
                "{stop:?} in {text:?}"
            );
            n_accepted += found.2;
        }
    }
    assert!(n_accepted > 10, "{n_accepted}");
}
