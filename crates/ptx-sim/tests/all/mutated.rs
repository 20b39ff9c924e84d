//! Damaged modules are refused with the line, or load.

use tokenmill_ptx_sim::{DeviceMemory, Module};
use tokenmill_testkit::{Random, text_mutation::mutate_text};

use crate::ptx_words;

#[test]
fn the_module_itself_loads() {
    Module::load(ptx_words::MODULE, &mut DeviceMemory::new()).unwrap();
}

#[test]
fn variables_beyond_any_memory_are_refused() {
    let error = |declarations: &str| {
        let ptx = format!(".version 8.3\n.target sm_80\n.visible .entry f() {{\n{declarations}\nret;\n}}\n");
        Module::load(&ptx, &mut DeviceMemory::new())
            .unwrap_err()
            .to_string()
    };
    assert!(error(".shared .b8 a[4294967295];").contains("an array of at most 256 MiB"));
    assert!(error(".shared .align 8192 .b8 a[1];").contains("an alignment of at most 4096"));
    let many = (0..17).map(|i| format!(".shared .b8 a{i}[268435456];"));
    let many = many.collect::<Vec<_>>().join("\n");
    assert_eq!(
        error(&many),
        "the variables of one space up to `a15` take 4 GiB or more"
    );
}

#[test]
fn mutated_modules_are_refused_or_load() {
    let mut random = Random::new(8);
    let (mut n_refused, mut n_loaded) = (0, 0);
    for _ in 0..4000 {
        let mut ptx = ptx_words::MODULE.to_owned();
        for _ in 0..=random.below(4) {
            mutate_text(&mut ptx, &ptx_words::WORDS, &mut |n| random.below(n));
        }
        match Module::load(&ptx, &mut DeviceMemory::new()) {
            Ok(_) => n_loaded += 1,
            Err(error) => {
                assert!(!error.to_string().is_empty());
                n_refused += 1;
            }
        }
    }
    assert!(
        n_refused > 1000 && n_loaded > 20,
        "{n_refused} refused, {n_loaded} loaded"
    );
}
