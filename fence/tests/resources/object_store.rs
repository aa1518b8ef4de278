//! Object stores: the contract, and a server that speaks S3.

use std::collections::HashMap;
use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::sync::Mutex;
use std::thread;

use ureq::Agent;
use wheellock_fence::FenceError;
use wheellock_fence::object_store::{
    Condition, ConditionalStore, TOKEN_METADATA, Version, assert_contract, put,
};
use wheellock_fixture::TestProcess;

use crate::LIMIT;
use crate::kinds::Folder;

/// What a store in memory does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    IgnoresAbsence,
    IgnoresTag,
    LosesToken,
    KeepsTag,
    WritesAlthoughRefused,
}

/// A bucket in memory, with a mistake or none.
#[derive(Default)]
struct Bucket {
    objects: Mutex<HashMap<String, Object>>,
    mistake: Option<Mistake>,
}

#[derive(Clone)]
struct Object {
    generation: u64,
    token: Option<u64>,
    content: Vec<u8>,
}

impl ConditionalStore for Bucket {
    type Error = Infallible;

    fn version(&self, key: &str) -> Result<Option<Version>, Infallible> {
        let objects = self.objects.lock().unwrap();
        Ok(objects.get(key).map(|it| Version::new(it.generation.to_string(), it.token)))
    }

    fn put_if(
        &self,
        key: &str,
        content: &[u8],
        token: u64,
        condition: Condition<'_>,
    ) -> Result<bool, Infallible> {
        let mut objects = self.objects.lock().unwrap();
        let old = objects.get(key).cloned();
        let tag = old.as_ref().map(|old| old.generation.to_string());
        let is_met = match condition.tag() {
            None => tag.is_none() || self.mistake == Some(Mistake::IgnoresAbsence),
            wanted => tag.as_deref() == wanted || self.mistake == Some(Mistake::IgnoresTag),
        };
        if !is_met && self.mistake != Some(Mistake::WritesAlthoughRefused) {
            return Ok(false);
        }
        let is_kept = self.mistake == Some(Mistake::KeepsTag);
        let generation = old.map_or(1, |old| old.generation + u64::from(!is_kept));
        let token = (self.mistake != Some(Mistake::LosesToken)).then_some(token);
        objects.insert(key.to_owned(), Object { generation, token, content: content.to_vec() });
        Ok(is_met)
    }
}

#[test]
fn the_contract_finds_each_mistake() {
    assert_contract(&Bucket::default(), "");
    for mistake in [
        Mistake::IgnoresAbsence,
        Mistake::IgnoresTag,
        Mistake::LosesToken,
        Mistake::KeepsTag,
        Mistake::WritesAlthoughRefused,
    ] {
        let bucket = Bucket { mistake: Some(mistake), ..Bucket::default() };
        let checked = catch_unwind(AssertUnwindSafe(|| assert_contract(&bucket, "")));
        assert!(checked.is_err(), "{mistake:?} was not found");
    }
}

#[test]
fn an_object_that_changes_each_time_is_contended() {
    /// A store in which another writer always comes first.
    struct Busy;

    impl ConditionalStore for Busy {
        type Error = Infallible;

        fn version(&self, _: &str) -> Result<Option<Version>, Infallible> {
            Ok(Some(Version::new("1", None)))
        }

        fn put_if(&self, _: &str, _: &[u8], _: u64, _: Condition<'_>) -> Result<bool, Infallible> {
            Ok(false)
        }
    }

    let refused = put(&Busy, "report.csv", 7, b"").unwrap_err();
    assert!(matches!(refused, FenceError::Contended { .. }), "{refused:?}");
    assert!(refused.to_string().contains("report.csv"), "{refused}");
}

#[test]
fn who_loses_a_race_looks_again() {
    /// Another writer comes first once, with a token of its own.
    struct Raced(Bucket, Mutex<Option<u64>>);

    impl ConditionalStore for Raced {
        type Error = Infallible;

        fn version(&self, key: &str) -> Result<Option<Version>, Infallible> {
            let version = self.0.version(key);
            if let Some(rival) = self.1.lock().unwrap().take() {
                put(&self.0, key, rival, b"of the rival").unwrap();
            }
            version
        }

        fn put_if(
            &self,
            key: &str,
            content: &[u8],
            token: u64,
            condition: Condition<'_>,
        ) -> Result<bool, Infallible> {
            self.0.put_if(key, content, token, condition)
        }
    }

    for (rival, is_stale) in [(6, false), (7, false), (8, true)] {
        let store = Raced(Bucket::default(), Mutex::new(Some(rival)));
        let written = put(&store, "report.csv", 7, b"of 7");
        assert_eq!(matches!(written, Err(FenceError::Stale(_))), is_stale, "{written:?}");
        let text = store.0.objects.lock().unwrap()["report.csv"].content.clone();
        assert_eq!(text, if is_stale { b"of the rival".to_vec() } else { b"of 7".to_vec() });
    }
}

#[test]
fn object_without_token_is_written_and_stale_token_is_refused() {
    let bucket = Bucket::default();
    let object = Object { generation: 1, token: None, content: b"0".to_vec() };
    bucket.objects.lock().unwrap().insert("report.csv".to_owned(), object);
    put(&bucket, "report.csv", 7, b"7").unwrap();
    put(&bucket, "report.csv", 7, b"7 again").unwrap();
    let Err(FenceError::Stale(stale)) = put(&bucket, "report.csv", 6, b"6") else { panic!() };
    assert_eq!((stale.token(), stale.newest()), (6, Some(7)));
    assert_eq!(bucket.objects.lock().unwrap()["report.csv"].content, b"7 again");
}

/// A bucket of a server that speaks S3, without signatures.
struct S3 {
    agent: Agent,
    bucket: String,
    /// Whether the token is in the content too.
    has_token_inside: bool,
}

impl S3 {
    fn new(port: &str, bucket: &str, has_token_inside: bool) -> Self {
        let config = Agent::config_builder().http_status_as_error(false);
        let agent = Agent::new_with_config(config.timeout_global(Some(LIMIT)).build());
        let bucket = format!("http://127.0.0.1:{port}/{bucket}");
        assert_eq!(agent.put(&bucket).send_empty().unwrap().status(), 200);
        Self { agent, bucket, has_token_inside }
    }

    fn read(&self, key: &str) -> String {
        let mut response = self.agent.get(format!("{}/{key}", self.bucket)).call().unwrap();
        response.body_mut().read_to_string().unwrap()
    }
}

impl ConditionalStore for S3 {
    type Error = ureq::Error;

    fn version(&self, key: &str) -> Result<Option<Version>, ureq::Error> {
        let response = self.agent.head(format!("{}/{key}", self.bucket)).call()?;
        let header = |name: &str| Some(response.headers().get(name)?.to_str().unwrap());
        match response.status().as_u16() {
            404 => Ok(None),
            200 => {
                let token = header(&format!("x-amz-meta-{TOKEN_METADATA}"));
                let token = token.and_then(|token| token.parse().ok());
                Ok(Some(Version::new(header("etag").unwrap(), token)))
            }
            other => Err(ureq::Error::StatusCode(other)),
        }
    }

    fn put_if(
        &self,
        key: &str,
        content: &[u8],
        token: u64,
        condition: Condition<'_>,
    ) -> Result<bool, ureq::Error> {
        let request = self.agent.put(format!("{}/{key}", self.bucket));
        let request = request.header(format!("x-amz-meta-{TOKEN_METADATA}"), token.to_string());
        let request = match condition.tag() {
            None => request.header("if-none-match", "*"),
            Some(tag) => request.header("if-match", tag),
        };
        let mut body = content.to_vec();
        if self.has_token_inside {
            body.extend_from_slice(format!("\n{TOKEN_METADATA}: {token}").as_bytes());
        }
        match request.send(&body)?.status().as_u16() {
            200 => Ok(true),
            404 | 409 | 412 => Ok(false),
            other => Err(ureq::Error::StatusCode(other)),
        }
    }
}

/// `S3_SERVER` is the program `S3Mock`, a jar.
#[test]
#[ignore = "it needs S3Mock and Java; .ci/run has them"]
fn s3_server_meets_contract_with_token_in_content() {
    let jar = std::env::var("S3_SERVER").unwrap();
    let folder = Folder::new();
    let root = format!("-Droot={}", folder.0.display());
    let mut command = Command::new("java");
    let options = ["-Dhttp.port=0", "-Dserver.port=0", &root, "-Dlogging.level.root=INFO", "-jar"];
    let mut server = TestProcess::spawn(command.args(options).arg(jar));
    let ports = loop {
        let line = server.wait_for_line("", LIMIT);
        if let Some((_, ports)) = line.split_once("Tomcat started on ports ") {
            break ports.to_owned();
        }
    };
    // Such as `38809 (https), 19090 (http) with ..`.
    let port = ports.split(' ').nth(2).unwrap();

    let plain = S3::new(port, "plain", false);
    let checked = catch_unwind(AssertUnwindSafe(|| assert_contract(&plain, "")));
    let message = checked.unwrap_err();
    let message = message.downcast_ref::<String>().unwrap();
    assert!(message.contains("the tag changes with the token"), "{message}");

    let store = S3::new(port, "fenced", true);
    assert_contract(&store, "");
    put(&store, "report.csv", 7, b"of the newer holder").unwrap();
    let refused = put(&store, "report.csv", 6, b"of the paused holder");
    assert!(matches!(refused, Err(FenceError::Stale(_))), "{refused:?}");
    assert_eq!(store.read("report.csv"), "of the newer holder\nfencing-token: 7");

    // Many at once: the newest token wins.
    thread::scope(|scope| {
        for token in 8..16 {
            let store = &store;
            let write = move || match put(store, "counter", token, format!("{token}").as_bytes()) {
                Ok(()) | Err(FenceError::Stale(_)) => {}
                Err(other) => panic!("{other:?}"),
            };
            thread::Builder::new().spawn_scoped(scope, write).unwrap();
        }
    });
    assert_eq!(store.read("counter"), "15\nfencing-token: 15");
}
