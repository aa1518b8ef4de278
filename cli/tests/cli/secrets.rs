//! No password in the list of processes, or in a message.

use std::fs;

use wheellock_fixture::{Server, TestProcess};

use crate::support::{FAILED, NAME, SUCCESS, ended, wheellock};

const SECRET: &str = "s3cret";

/// A server that knows the user `locks`.
fn server() -> Server {
    Server::builder().user(&format!("locks on >{SECRET} ~* &* +@all")).start()
}

/// Lists all processes from inside the lock, beginning with the holder.
const PROCESSES: &[&str] = &["--", "sh", "-c", "ps -A -o pid=,ppid=,args=; echo $PPID"];

/// The lines of the holder and of its children, the guardian and the command.
fn own(list: &str) -> String {
    let holder = list.lines().next_back().unwrap();
    let is_own = |line: &&str| line.split_whitespace().take(2).any(|id| id == holder);
    list.split_inclusive('\n').filter(is_own).collect()
}

#[test]
fn a_password_on_the_command_line_is_refused_and_not_repeated() {
    for url in ["redis://:s3cret@127.0.0.1/", "redis://u:s3cret@h", "unix:///s?pass=s3cret"] {
        for words in [
            &["run", "--redis", url, NAME, "--", "true"][..],
            &["run", url, "--", "true"],
            &["run", NAME, url],
            &[url],
        ] {
            let (code, output) = ended(TestProcess::spawn(&mut wheellock(words)));
            assert_eq!(code, FAILED, "{output}");
            assert!(!output.contains(SECRET), "{output}");
            assert!(output.contains("REDIS_URL"), "{output}");
        }
    }
}

#[test]
fn environment_password_appears_in_no_process_list() {
    let server = server();
    let url = server.url().replace("redis://", &format!("redis://locks:{SECRET}@"));
    let words = [&["run", NAME], PROCESSES].concat();
    let (code, output) = ended(TestProcess::spawn(wheellock(&words).env("REDIS_URL", url)));
    assert_eq!(code, SUCCESS, "{output}");
    let shown = own(&output);
    assert!(shown.contains("wheellock run nightly"), "{shown}");
    assert!(shown.contains("wheellock __guardian") && shown.contains("sh -c ps"), "{shown}");
    assert!(!shown.contains(SECRET), "{shown}");
}

#[test]
fn the_password_can_come_from_a_file() {
    let server = server();
    let url = server.url().replace("redis://", "redis://locks@");
    let file = std::env::temp_dir().join(format!("wheellock-cli-{}-password", std::process::id()));
    let path = file.to_str().unwrap();
    let words = [&["run", "--redis", &url, "--password-file", path, NAME], PROCESSES].concat();

    fs::write(&file, format!("{SECRET}\n")).unwrap();
    let (code, output) = ended(TestProcess::spawn(&mut wheellock(&words)));
    assert_eq!(code, SUCCESS, "{output}");
    let shown = own(&output);
    assert!(shown.contains(path) && !shown.contains(SECRET), "{shown}");

    fs::write(&file, "wrong-one").unwrap();
    let (code, output) = ended(TestProcess::spawn(&mut wheellock(&words)));
    assert_eq!(code, FAILED, "{output}");
    assert!(output.contains("WRONGPASS") && !output.contains("wrong-one"), "{output}");

    fs::remove_file(&file).unwrap();
    let (code, output) = ended(TestProcess::spawn(&mut wheellock(&words)));
    assert_eq!(code, FAILED, "{output}");
    assert!(output.contains("cannot be read"), "{output}");
}

#[test]
fn a_wrong_password_of_the_environment_is_not_repeated() {
    let server = server();
    let url = server.url().replace("redis://", "redis://locks:wrong-one@");
    let mut command = wheellock(&["run", NAME, "--", "true"]);
    let (code, output) = ended(TestProcess::spawn(command.env("REDIS_URL", url)));
    assert_eq!(code, FAILED, "{output}");
    assert!(!output.contains("wrong-one"), "{output}");
}
