//! The manual pages and the completions.

use wheellock_fixture::TestProcess;

use crate::support::{FAILED, SUCCESS, ended, wheellock};

fn output(words: &[&str]) -> String {
    let (code, output) = ended(TestProcess::spawn(&mut wheellock(words)));
    assert_eq!(code, SUCCESS, "{output}");
    output
}

#[test]
fn every_command_has_a_manual_page() {
    let page = output(&["man"]);
    assert!(page.contains(".TH wheellock 1"), "{page}");
    for command in [
        "run",
        "status",
        "list",
        "watch",
        "serve",
        "unlock",
        "bench",
        "doctor",
        "completions",
        "man",
    ] {
        assert!(page.contains(&format!("wheellock\\-{command}(1)")), "{page}");
        let page = output(&["man", command]);
        assert!(page.contains(&format!(".TH wheellock-{command} 1")), "{page}");
    }
    assert!(output(&["man", "run"]).contains("WHEELLOCK_TOKEN"));
    let (code, _) = ended(TestProcess::spawn(&mut wheellock(&["man", "nothing"])));
    assert_eq!(code, FAILED);
}

#[test]
fn the_usual_shells_have_completions() {
    for shell in ["bash", "zsh", "fish"] {
        let completions = output(&["completions", shell]);
        assert!(completions.contains("on-conflict"), "{shell}: {completions}");
        assert!(!completions.contains("__guardian"), "{shell}");
    }
}
