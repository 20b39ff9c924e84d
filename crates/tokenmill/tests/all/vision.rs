//! Conversations with images, through the front door.

use std::{
    cell::Cell,
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};
use tokenmill::{
    Conversation, Error, LoadOptions, Model, TextParams,
    images::image_part,
    load::{ContextShift, ModelSource, Projector},
};
use tokenmill_sched::PageEvent;
use tokenmill_testkit::Comparisons;

fn data(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/data/vision")
        .join(path)
}

fn options() -> LoadOptions {
    LoadOptions::default().context(256).threads(2)
}

fn load() -> Model {
    options().load(data("gemma3/model.gguf")).unwrap()
}

fn image(name: &str) -> Value {
    image_part(&fs::read(data("gemma3").join(name)).unwrap())
}

fn asked(parts: impl IntoIterator<Item = Value>) -> Conversation {
    let content: Value = parts.into_iter().collect();
    Conversation::from_json(vec![json!({"role": "user", "content": content})])
}

fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

fn at_most(max_tokens: u32) -> TextParams {
    TextParams {
        max_tokens: Some(max_tokens),
        ignore_eos: true,
        ..TextParams::default()
    }
}

fn ids(model: &Model, conversation: Conversation, n: u32) -> Vec<u32> {
    let answer = model.chat(conversation, &at_most(n)).unwrap();
    answer.tokens.iter().map(|token| token.id).collect()
}

#[test]
fn the_encoder_is_weighed_before_it_is_loaded() {
    let source = ModelSource::find(data("gemma3/model.gguf")).unwrap();
    let network = source.open_network().unwrap();
    let needed = |options: LoadOptions| options.needed_bytes(&source, &network).unwrap();
    let blind = needed(LoadOptions {
        projector: Projector::None,
        ..options()
    });
    let found = needed(options());
    let file = fs::metadata(data("gemma3/mmproj-model.gguf")).unwrap().len();
    assert!(
        found > blind + file / 2,
        "{found} is not {blind} with a file of {file}"
    );
    assert_eq!(
        needed(options().projector(data("gemma3/mmproj-model.gguf"))),
        found
    );
    // It is loaded with the first image, and counts before that.
    assert_eq!(load().taken_bytes(), found);
}

#[test]
fn greedy_answers_are_those_of_transformers_in_steps_of_any_size() {
    let mut comparisons = Comparisons::of("images by the library");
    for family in ["gemma3", "qwen2vl", "qwen2.5vl", "qwen3vl", "qwen3vlmoe"] {
        comparisons.compared(check_greedy_answers(family));
    }
}

/// Returns how many answers were compared.
fn check_greedy_answers(family: &str) -> usize {
    let file = |name: &str| data(family).join(name);
    let reference: Value = serde_json::from_slice(&fs::read(file("ref.json")).unwrap()).unwrap();
    let mut n_compared = 0;
    for max_step_tokens in [16, 19, 64, 512] {
        let options = LoadOptions {
            max_step_tokens,
            ..options()
        };
        let model = options.load(file("model.gguf")).unwrap();
        for case in reference["cases"].as_array().unwrap() {
            let images = case["images"].as_array().unwrap().iter();
            let images = images.map(|name| image_part(&fs::read(file(name.as_str().unwrap())).unwrap()));
            let question = text(case["question"].as_str().unwrap());
            let conversation = asked(images.chain([question]));
            let prompt = model.words().prompt(&conversation).unwrap();
            assert_eq!(prompt.tokens.len(), case["prompt"].as_array().unwrap().len());
            let expected: Vec<u32> = serde_json::from_value(case["greedy"].clone()).unwrap();
            let found = ids(&model, conversation, expected.len() as u32);
            assert_eq!(found, expected, "{family}, {max_step_tokens} tokens a step");
            n_compared += 1;
        }
    }
    n_compared
}

#[test]
fn company_changes_no_answer() {
    let model = load();
    let questions: Vec<Conversation> = (0..6)
        .map(|n| asked([image(&format!("{}.png", n % 2)), text(&"why ".repeat(n))]))
        .collect();
    let alone: Vec<_> = questions
        .iter()
        .map(|asked| ids(&model, asked.clone(), 12))
        .collect();
    let other = options().load(data("gemma3/model.gguf")).unwrap();
    let other = &other;
    let together: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (questions.iter())
            .map(|asked| scope.spawn(move || ids(other, asked.clone(), 12)))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(alone, together);
}

#[test]
fn the_cache_knows_an_image_by_its_content() {
    let model = load();
    let cached = |name: &str| {
        let answer = model.chat(asked([image(name), text("What is it?")]), &at_most(4));
        let answer = answer.unwrap();
        (
            answer.usage.cached_tokens,
            answer.tokens.iter().map(|token| token.id).collect::<Vec<_>>(),
        )
    };
    let (first, tokens) = cached("0.png");
    assert_eq!(first, 0);
    let (again, same_tokens) = cached("0.png");
    assert!(again >= 32, "{again} tokens were cached");
    assert_eq!(tokens, same_tokens);
    // The image begins in the first page.
    let (of_another, other_tokens) = cached("1.png");
    assert_eq!(of_another, 0);
    assert_ne!(tokens, other_tokens);
    // And after it was evicted or not, the same image gives the same text.
    assert_eq!(cached("0.png").1, tokens);
}

#[test]
fn a_prompt_that_is_cut_has_its_images_where_their_marks_are() {
    let model = load();
    let conversation = asked([
        image("0.png"),
        text(&"why ".repeat(20)),
        image("1.png"),
        text("What is it?"),
    ]);
    let whole = model.words().prompt(&conversation).unwrap();
    let n_tokens = whole.tokens.len();
    let seen = model.see(whole.clone(), 0).unwrap();
    let mark = whole.tokens[seen.media[0].span.start];
    let n_others = |tokens: &[u32], n_media: usize| {
        let n_marks = tokens.iter().filter(|&&token| token == mark).count();
        n_marks - n_media * seen.media[0].span.n_inputs()
    };
    let last = seen.media[1].span.content;
    let mut n_cut_images = 0;
    for n_ctx in (n_tokens * 3 / 5..=n_tokens).step_by(3) {
        let mut prompt = whole.clone();
        let n_dropped = prompt.cut(ContextShift { keep: 2 }, n_ctx);
        assert!(n_dropped > 0 && prompt.tokens.len() == n_tokens - n_dropped);
        let prompt = model.see(prompt, 0).unwrap();
        for media in &prompt.media[..] {
            let places = &prompt.tokens[media.span.start..media.span.end];
            assert!(places.iter().all(|&token| token == mark), "{n_ctx}: {places:?}");
        }
        assert!(n_others(&prompt.tokens, prompt.media.len()) <= 2);
        if let Some(media) = prompt.media.last() {
            assert_eq!(media.span.content, last, "the newest image stays");
        }
        n_cut_images += 2 - prompt.media.len();
    }
    assert!(n_cut_images > 0);
}

#[test]
fn images_that_are_not_wanted_any_more_are_left_out() {
    let model = load();
    let prompt = (model.words())
        .prompt(&asked([image("0.png"), image("1.png")]))
        .unwrap();
    let n_asked = Cell::new(0);
    let only_first = || n_asked.replace(n_asked.get() + 1) == 0;
    let seen = model.see_while(prompt.clone(), 0, &only_first).unwrap();
    assert!(seen.is_none());
    assert_eq!(n_asked.get(), 2, "it is asked before each image");
    assert_eq!(model.see(prompt, 0).unwrap().media.len(), 2);
}

#[test]
fn what_cannot_be_seen_is_refused_in_one_line() {
    let model = load();
    let refused = |model: &Model, parts: Vec<Value>| {
        let error = model.chat(asked(parts), &at_most(1)).unwrap_err();
        let line = error.to_string();
        assert!(!line.contains('\n'), "{line}");
        line
    };
    for (file, expected) in [
        (&b""[..], "the image is empty"),
        (&b"Once upon a time"[..], "this is not a supported image"),
        (&b"\x89PNG\r\n\x1a\nbroken"[..], "the image is damaged"),
    ] {
        let line = refused(&model, vec![image_part(file), text("Hi")]);
        assert!(line.contains(expected), "{line}");
    }
    let url = |url: &str| json!({"type": "image_url", "image_url": {"url": url}});
    for of in [
        "http://localhost/a.png",
        "file:///etc/passwd",
        "data:image/png;base64,%%",
    ] {
        let line = refused(&model, vec![url(of), text("Hi")]);
        assert!(
            line.starts_with("the image of message 0 cannot be read: "),
            "{line}"
        );
    }
    // More than the context holds, which is said before any is decoded.
    let many = vec![image_part(b"no image"); 40];
    let line = refused(&model, many);
    assert!(line.contains("the context holds 256"), "{line}");
    // And more than room is made for.
    let many = asked(vec![image_part(b"no image"); 4096]);
    let line = model.words().encode_chat(&many).unwrap_err().to_string();
    assert!(line.contains("the context holds 256"), "{line}");
    // A message's own text is not a mark.
    let said = Conversation::from_json(vec![json!({"role": "user", "content": "<start_of_image>"})]);
    assert!(model.words().prompt(&said).unwrap().images.is_empty());

    let blind = LoadOptions {
        projector: Projector::None,
        ..options()
    };
    let blind = blind.load(data("gemma3/model.gguf")).unwrap();
    assert!(!blind.sees() && model.sees());
    let line = refused(&blind, vec![image("0.png")]);
    assert_eq!(line, "this model was loaded without an image encoder");
    // The same conversation without images is answered.
    assert_eq!(ids(&blind, asked([text("Hi")]), 2).len(), 2);
}

#[test]
fn an_encoder_of_another_model_is_refused_with_both_widths() {
    let demo = options().projector(data("gemma3/mmproj-model.gguf")).load("demo");
    let error = demo.unwrap_err();
    assert!(
        matches!(error, Error::ProjectorWidth { found: 32, .. }),
        "{error}"
    );
    let error = options()
        .projector(data("gemma3/model.gguf"))
        .load(data("gemma3/model.gguf"));
    let line = error.unwrap_err().to_string();
    assert!(
        line.ends_with("is not an image encoder but a model of the architecture `gemma3`"),
        "{line}"
    );
    let error = options()
        .projector(data("gemma3/0.png"))
        .load(data("gemma3/model.gguf"));
    assert!(matches!(error, Err(Error::Projector { .. })));
    let error = options()
        .projector("/nowhere.gguf")
        .load(data("gemma3/model.gguf"));
    assert!(matches!(error, Err(Error::Projector { .. })));
}

#[test]
fn a_folder_with_an_encoder_is_a_folder_with_one_model() {
    let model = options().load(data("gemma3")).unwrap();
    assert!(model.sees());
}

#[test]
fn events_of_the_cache_tell_images_apart() {
    let options = LoadOptions {
        max_page_event_batches: Some(1000),
        ..options()
    };
    let model = options.load(data("qwen2vl/model.gguf")).unwrap();
    let mut events = model.engine().take_page_events().unwrap();
    // The media that the events name for the pages of a prompt, with an image or without one.
    let mut media = |image: Option<&str>| {
        let image = image.map(|name| image_part(&fs::read(data("qwen2vl").join(name)).unwrap()));
        let said = text("The same words before and after, and enough of them for some pages.");
        ids(
            &model,
            asked([said.clone()].into_iter().chain(image).chain([said])),
            1,
        );
        // The batch of the last step comes before its answer or soon after.
        let mut found = Vec::new();
        for _ in 0..200 {
            while let Some(batch) = events.try_next() {
                found.extend(batch.into_iter().filter_map(|event| match event {
                    PageEvent::Stored(page) => Some(page.media),
                    _ => None,
                }));
            }
            if !found.is_empty() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        found
    };
    assert!(media(None).iter().all(Option::is_none));
    let first: Vec<u128> = media(Some("0.png")).into_iter().flatten().collect();
    let second: Vec<u128> = media(Some("1.png")).into_iter().flatten().collect();
    assert!(!first.is_empty() && !second.is_empty());
    assert!(first.iter().all(|content| *content == first[0]));
    assert_ne!(first[0], second[0]);
}
