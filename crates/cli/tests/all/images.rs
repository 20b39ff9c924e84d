//! `--image`, `/image` and `--mmproj`: a model sees the given images, and an unusable image is a one-line
//! error.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};
use tokenmill_testkit::{Comparisons, png_header};

use crate::support::{arg, tokenmill, tokenmill_with};

fn data(name: &str) -> PathBuf {
    data_of("gemma3", name)
}

fn data_of(family: &str, name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/data/vision")
        .join(family)
        .join(name)
}

fn run<'a>(model: &'a str, question: &'a str, extra: &[&'a str]) -> Vec<&'a str> {
    let args = [
        "run", model, question, "--temp", "0", "-n", "8", "--json", "--device", "cpu", "-c", "256",
    ];
    [&args[..], extra].concat()
}

#[test]
fn run_sees_as_transformers_does() {
    let mut comparisons = Comparisons::of("images by the program");
    for family in ["gemma3", "qwen2vl", "qwen2.5vl", "qwen3vl", "qwen3vlmoe"] {
        comparisons.compared(check_run(family));
    }
}

/// Returns how many answers were compared.
fn check_run(family: &str) -> usize {
    let data = |name: &str| data_of(family, name);
    let mut n_compared = 0;
    let reference: Value = serde_json::from_slice(&fs::read(data("ref.json")).unwrap()).unwrap();
    let model = data("model.gguf");
    let apart = tempfile::tempdir().unwrap();
    let alone = apart.path().join("model.gguf");
    fs::copy(&model, &alone).unwrap();
    let encoder = data("mmproj-model.gguf");
    for case in reference["cases"].as_array().unwrap() {
        let images: Vec<PathBuf> = (case["images"].as_array().unwrap().iter())
            .map(|name| data(name.as_str().unwrap()))
            .collect();
        let shown: Vec<&str> = images.iter().flat_map(|image| ["--image", arg(image)]).collect();
        let question = case["question"].as_str().unwrap();
        // An encoder that is found, and one that is named.
        let named = [&shown[..], &["--mmproj", arg(&encoder)]].concat();
        for (model, extra) in [(&model, &shown), (&alone, &named)] {
            let reply = tokenmill(run(arg(model), question, extra)).ok();
            let reply: Value = serde_json::from_str(&reply).unwrap();
            let ids = reply["ids"].as_array().unwrap();
            let expected = case["greedy"].as_array().unwrap();
            assert_eq!(ids[..], expected[..ids.len()], "{reply}");
            assert!(!ids.is_empty());
            let n_prompt = reply["prompt_ids"].as_array().unwrap().len();
            assert_eq!(n_prompt, case["prompt"].as_array().unwrap().len());
            n_compared += 1;
        }
    }
    n_compared
}

#[test]
fn an_encoder_made_of_a_folder_sees_as_transformers_does() {
    let mut comparisons = Comparisons::of("encoders made of folders by the program");
    for family in ["gemma3", "qwen2vl", "qwen2.5vl", "qwen3vl"] {
        let data = |name: &str| data_of(family, name);
        let target = tempfile::tempdir().unwrap();
        let [model, encoder] = ["model.gguf", "mmproj-model.gguf"].map(|name| target.path().join(name));
        fs::copy(data("model.gguf"), &model).unwrap();
        let said = tokenmill([
            "convert",
            arg(&data("hf")),
            arg(&encoder),
            "--mmproj",
            "--type",
            "f16",
        ]);
        assert!(said.stderr.is_empty(), "{}", said.stderr);
        let said = said.ok();
        assert!(
            said.starts_with(&format!("wrote {}: clip, ", encoder.display())),
            "{said}"
        );
        // It is found next to the model.
        let reference: Value = serde_json::from_slice(&fs::read(data("ref.json")).unwrap()).unwrap();
        for case in reference["cases"].as_array().unwrap() {
            let images: Vec<PathBuf> = (case["images"].as_array().unwrap().iter())
                .map(|name| data(name.as_str().unwrap()))
                .collect();
            let shown: Vec<&str> = images.iter().flat_map(|image| ["--image", arg(image)]).collect();
            let reply = tokenmill(run(arg(&model), case["question"].as_str().unwrap(), &shown)).ok();
            let reply: Value = serde_json::from_str(&reply).unwrap();
            let (ids, expected) = (
                reply["ids"].as_array().unwrap(),
                case["greedy"].as_array().unwrap(),
            );
            assert!(!ids.is_empty());
            assert_eq!(ids[..], expected[..ids.len()], "{family}: {reply}");
            comparisons.compared(1);
        }
    }
}

#[test]
fn what_convert_says_of_encoders() {
    let folder = data("hf");
    let target = tempfile::tempdir().unwrap();
    let output = target.path().join("eyes.gguf");
    let convert = |extra: &[&str]| {
        let args = ["convert", arg(&folder), arg(&output), "--mmproj"];
        tokenmill([&args[..], extra].concat())
    };
    let line = convert(&["--type", "q4_k_m"]).failed(2);
    assert!(
        line.contains("its types are auto, f32, f16, bf16 and q8_0"),
        "{line}"
    );
    let outcome = convert(&["--imatrix", "x"]);
    assert!(
        outcome.stderr.contains("cannot be used with `--imatrix`"),
        "{}",
        outcome.stderr
    );
    let dry = convert(&["--dry-run"]).ok();
    assert!(dry.starts_with("auto would be "), "{dry}");
    assert!(!output.exists());
    let said = convert(&[]);
    assert!(said.stderr.contains("has `mmproj` in it"), "{}", said.stderr);
    said.ok();
    // A folder without an encoder.
    let plain = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/parity/qwen2/hf");
    let line = tokenmill(["convert", arg(&plain), arg(&output), "--mmproj", "--overwrite"]).failed(3);
    assert!(line.contains("the folder has no image encoder"), "{line}");
    // The network of a folder that has one.
    let both = tempfile::tempdir().unwrap();
    for name in ["config.json", "model.safetensors"] {
        fs::copy(folder.join(name), both.path().join(name)).unwrap();
    }
    let letters: serde_json::Map<String, Value> = (b'a'..=b'z')
        .map(|letter| (char::from(letter).to_string(), json!(letter - b'a')))
        .collect();
    let tokenizer = json!({
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "vocab": letters, "merges": []},
    });
    fs::write(both.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let said = tokenmill([
        "convert",
        arg(both.path()),
        arg(&output),
        "--pre",
        "gpt-2",
        "--overwrite",
    ]);
    assert!(
        said.stderr.contains("the file has no image encoder"),
        "{}",
        said.stderr
    );
    said.ok();
}

#[test]
fn a_chat_shows_images_and_keeps_them() {
    let model = data("model.gguf");
    let folder = tempfile::tempdir().unwrap();
    let saved = folder.path().join("talk.json");
    let chat = |input: &str| {
        tokenmill_with(
            &[
                "chat",
                arg(&model),
                "--temp",
                "0",
                "-n",
                "6",
                "--device",
                "cpu",
                "-c",
                "256",
            ],
            input,
        )
    };
    let picture = data("0.png");
    let first = chat(&format!(
        "/image {}\nWhat is it?\n/save {}\n/show messages\n",
        arg(&picture),
        arg(&saved)
    ));
    let shown = first.ok();
    assert!(shown.contains("image_url") && !shown.contains("iVBOR"), "{shown}");
    let kept: Value = serde_json::from_str(&fs::read_to_string(&saved).unwrap()).unwrap();
    assert!(
        kept["messages"][0]["content"][0]["image_url"]["url"]
            .as_str()
            .unwrap()
            .contains("iVBOR")
    );
    let answer = kept["messages"][1]["content"].as_str().unwrap();
    // The same answer once more, and another without the image.
    let again = chat(&format!("/load {}\n/regen\n/save {}\n", arg(&saved), arg(&saved)));
    again.ok();
    let kept: Value = serde_json::from_str(&fs::read_to_string(&saved).unwrap()).unwrap();
    assert_eq!(kept["messages"][1]["content"], answer);
    // A file that is not an image is refused at once, and a waiting image can be taken back.
    let text = folder.path().join("text.png");
    fs::write(&text, "Once").unwrap();
    let refused = chat(&format!("/image {}\nHi\n/stats\n", arg(&text)));
    assert!(
        refused.stderr.contains("text.png: this is not a supported image"),
        "{}",
        refused.stderr
    );
    let taken_back = chat(&format!("/image {}\n/undo\nHi\n/show messages\n", arg(&picture)));
    let shown = taken_back.ok();
    assert!(shown.contains("Hi") && !shown.contains("image_url"), "{shown}");
    let missing = chat("/image nowhere.png\nHi\n");
    assert_ne!(missing.code, 0);
    assert!(missing.stderr.contains("nowhere.png"), "{}", missing.stderr);
}

/// A template whose answers begin where its prompts end.
const ASKING: &str = "{% for m in messages %}<start_of_turn>{% if m.content is string %}{{ m.content }}{% else %}\
                      {% for part in m.content %}{% if part.type == 'image' %}<start_of_image>{% else %}{{ part.text }}{% endif %}\
                      {% endfor %}{% endif %}<end_of_turn>{% endfor %}{% if add_generation_prompt %}<start_of_turn>{% endif %}";

#[test]
fn decide_sees_images_before_the_text_and_in_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let [template, questions, state, text] =
        ["template.jinja", "questions.json", "state.txt", "text.png"].map(|name| folder.path().join(name));
    let asked =
        json!({ "who": { "type": "choice", "instructions": "Who?", "criteria": { "c": null, "d": null } } });
    fs::write(&template, ASKING).unwrap();
    fs::write(&questions, asked.to_string()).unwrap();
    fs::write(&state, "a").unwrap();
    fs::write(&text, "Once").unwrap();
    let [model, first, second] = ["model.gguf", "0.png", "1.png"].map(data);
    let decide = |model: &str, extra: &[&str]| {
        let args = [
            "decide",
            model,
            "--questions",
            arg(&questions),
            "--template",
            arg(&template),
            "--json",
            "--device",
            "cpu",
            "-t",
            "1",
            "-c",
            "512",
        ];
        tokenmill([&args[..], extra].concat())
    };
    let [state, first, second] = [arg(&state), arg(&first), arg(&second)];
    let ask = |extra: &[&str]| {
        let answer: Value = serde_json::from_str(&decide(arg(&model), extra).ok()).unwrap();
        let probabilities = answer["answers"]["who"]["probabilities"].clone();
        assert!(probabilities["c"].is_f64(), "{answer}");
        probabilities.to_string()
    };
    let seen = ask(&["--state", state, "--image", first]);
    let all = [
        ask(&["--state", state]),
        ask(&["--state", state, "--image", second]),
        ask(&["--image", first]),
        ask(&["--state", state, "--image", first, "--image", second]),
        ask(&["--state", state, "--image", second, "--image", first]),
        seen.clone(),
    ];
    for (idx, one) in all.iter().enumerate() {
        assert!(!all[..idx].contains(one), "{idx} in {all:?}");
    }
    assert_eq!(ask(&["--image", first, "--state", state]), seen);

    let refused = decide("demo", &["--image", first]).failed(3);
    assert!(refused.contains("takes no images"), "{refused}");
    let refused = decide(arg(&model), &["--image", first, "--no-mmproj"]).failed(2);
    assert!(refused.contains("contradict each other"), "{refused}");
    // The next fault is told before a model is looked for.
    let refused = decide("nowhere.gguf", &["--image", arg(&text)]).failed(3);
    assert!(
        refused.contains("text.png: this is not a supported image"),
        "{refused}"
    );
    let nine = ["--image", first].repeat(9);
    let refused = decide("nowhere.gguf", &nine).failed(3);
    assert!(refused.contains("9 images, and the limit is 8"), "{refused}");
}

#[test]
fn the_time_of_an_image_counts_until_the_first_token() {
    let model = data("model.gguf");
    let picture = data("0.png");
    let outcome = tokenmill(run(arg(&model), "Hi", &["--image", arg(&picture)]));
    let line = outcome.stderr.lines().last().unwrap_or_default().to_owned();
    let reply: Value = serde_json::from_str(&outcome.ok()).unwrap();
    let ms = |name: &str| reply["timings"][name].as_f64().unwrap();
    assert!(ms("image_ms") > 0.0, "{reply}");
    let shown = line
        .split("first after ")
        .nth(1)
        .and_then(|rest| rest.split(' ').next());
    let shown: f64 = shown.and_then(|text| text.parse().ok()).expect("a time");
    assert!(
        (shown - ms("image_ms") - ms("prompt_ms")).abs() <= 1.0,
        "{line} {reply}"
    );
    let blind = tokenmill(run(arg(&model), "Hi", &[])).ok();
    let blind: Value = serde_json::from_str(&blind).unwrap();
    assert_eq!(blind["timings"]["image_ms"], Value::Null);
}

#[test]
fn doctor_names_an_encoder_beside_the_model() {
    let text = tokenmill(["doctor", arg(&data("model.gguf")), "--device", "cpu"]).ok();
    assert!(text.contains("mmproj-model.gguf is next to the model"), "{text}");
}

#[test]
fn what_cannot_be_seen_is_one_line() {
    let model = data("model.gguf");
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    let cut = fs::read(data("0.png")).unwrap();
    let check = |image: &Path, extra: &[&str], expected: &str| {
        let args = [&["--image", arg(image)], extra].concat();
        let line = tokenmill(run(arg(&model), "Hi", &args)).failed(3);
        assert!(line.contains(expected), "{line}");
    };
    check(&file("empty.png", b""), &[], "the image is empty");
    check(
        &file("text.png", b"Once upon a time"),
        &[],
        "this is not a supported image",
    );
    check(&file("cut.png", &cut[..20]), &[], "damaged");
    for (width, height) in [(100_000, 3), (3, 100_000), (8192, 8192)] {
        let said = format!(
            "the image is {width} x {height}; at most 16384 pixels to a side and 33554432 in all are read"
        );
        check(&file("wide.png", &png_header(width, height)), &[], &said);
    }
    check(
        &file("row.png", &png_header(100, 100)),
        &[],
        "the image is damaged",
    );
    check(&folder.path().join("nowhere.png"), &[], "nowhere.png");
    let picture = data("0.png");
    let args = ["--image", arg(&picture), "--no-mmproj"];
    let line = tokenmill(run(arg(&model), "Hi", &args)).failed(2);
    assert!(line.contains("`--image` and `--no-mmproj` contradict"), "{line}");
    let alone = folder.path().join("alone.gguf");
    fs::copy(&model, &alone).unwrap();
    let line = tokenmill(run(arg(&alone), "Hi", &["--image", arg(&picture)])).failed(3);
    assert!(line.contains("give one with `--mmproj FILE`"), "{line}");
    check(
        &picture,
        &["--mmproj", arg(&model)],
        "is not an image encoder but a model of the architecture `gemma3`",
    );
    check(&picture, &["--mmproj", arg(&picture)], "not a GGUF file");
    let encoder = data("mmproj-model.gguf");
    let demo = tokenmill(["run", "demo", "Hi", "--device", "cpu", "--mmproj", arg(&encoder)]).failed(3);
    assert!(
        demo.contains("32 wide") && demo.contains("another model"),
        "{demo}"
    );
    let blind = tokenmill(["run", "demo", "Hi", "--device", "cpu", "--image", arg(&picture)]).failed(3);
    assert!(
        blind.contains("a model of the architecture `llama` takes no images") && !blind.contains("--mmproj"),
        "{blind}"
    );
    let chat = tokenmill_with(
        &["chat", arg(&model), "--no-mmproj", "--device", "cpu"],
        &format!("/image {}\n", arg(&picture)),
    );
    assert!(chat.stderr.contains("leave out `--no-mmproj`"), "{}", chat.stderr);
    // More than the context holds.
    let many = ["--image", arg(&picture)].repeat(12);
    let line = tokenmill(run(arg(&model), "Hi", &many)).failed(3);
    assert!(line.contains("256"), "{line}");
}

#[test]
fn a_file_that_is_too_large_is_refused_before_it_is_read() {
    let model = data("model.gguf");
    let folder = tempfile::tempdir().unwrap();
    // Files of zeros that take no room on the disk. No machine has memory for the second.
    for n_bytes in [1_u64 << 30, 1 << 40] {
        let image = folder.path().join("large.png");
        fs::File::create(&image).unwrap().set_len(n_bytes).unwrap();
        let said = format!(
            "cannot read {}: it has {n_bytes} bytes, at most 67108864 are read",
            image.display()
        );
        let line = tokenmill(run(arg(&model), "Hi", &["--image", arg(&image)])).failed(3);
        assert_eq!(line, format!("error: {said}"));
        let chat = tokenmill_with(
            &["chat", arg(&model), "--device", "cpu", "-c", "256", "-n", "1"],
            &format!("/image {}\nHi\n", arg(&image)),
        );
        assert!(chat.stderr.contains(&said), "{}", chat.stderr);
    }
}
