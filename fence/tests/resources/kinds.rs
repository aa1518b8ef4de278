//! The kinds of resources, with one face.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use postgres::NoTls;
use rusqlite::TransactionBehavior;
use wheellock_fence::{FenceError, Stale, file, sql, sqlite};
use wheellock_fixture::{Postgres, Server};

use crate::LIMIT;

/// The name of what is written.
pub(crate) const NAME: &str = "thing";

/// The name of the lock of its writers.
pub(crate) const LOCK: &str = "writers of thing";

/// A step of a write, after which a writer may be killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Begun,
    Raised,
    Written,
    Committed,
}

impl Step {
    pub(crate) const ALL: [Self; 4] = [Self::Begun, Self::Raised, Self::Written, Self::Committed];
}

/// Whether a write was done. `Err` is the refusal, as the library words it.
pub(crate) type Outcome = Result<(), String>;

/// A resource that holds one text.
pub(crate) trait Resource {
    /// Writes with a token. `after` is called after each step that this kind has.
    fn write(&mut self, token: u64, value: &str, after: &mut dyn FnMut(Step)) -> Outcome;

    /// Writes as a program does that has no fence.
    fn write_without_a_fence(&mut self, value: &str);

    /// What was written last.
    fn read(&mut self) -> String;
}

/// Where a resource is, for this process and for its children.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    Postgres(String),
    /// A column of each row instead of the table of tokens.
    PostgresColumn(String),
    Sqlite(PathBuf),
    SqliteColumn(PathBuf),
    Redis(String),
    File(PathBuf),
}

impl Place {
    pub(crate) fn to_text(&self) -> String {
        match self {
            Self::Postgres(parameters) => format!("postgres {parameters}"),
            Self::PostgresColumn(parameters) => format!("postgres-column {parameters}"),
            Self::Sqlite(path) => format!("sqlite {}", path.display()),
            Self::SqliteColumn(path) => format!("sqlite-column {}", path.display()),
            Self::Redis(url) => format!("redis {url}"),
            Self::File(path) => format!("file {}", path.display()),
        }
    }

    pub(crate) fn parse(text: &str) -> Self {
        let (kind, rest) = text.split_once(' ').unwrap();
        match kind {
            "postgres" => Self::Postgres(rest.to_owned()),
            "postgres-column" => Self::PostgresColumn(rest.to_owned()),
            "sqlite" => Self::Sqlite(rest.into()),
            "sqlite-column" => Self::SqliteColumn(rest.into()),
            "redis" => Self::Redis(rest.to_owned()),
            "file" => Self::File(rest.into()),
            _ => panic!("there is no resource {kind}"),
        }
    }

    pub(crate) fn open(&self) -> Box<dyn Resource> {
        match self {
            Self::Postgres(parameters) => Box::new(OfPostgres::open(parameters, false)),
            Self::PostgresColumn(parameters) => Box::new(OfPostgres::open(parameters, true)),
            Self::Sqlite(path) => Box::new(OfSqlite::open(path, false)),
            Self::SqliteColumn(path) => Box::new(OfSqlite::open(path, true)),
            Self::Redis(url) => Box::new(OfRedis(redis::Client::open(url.as_str()).unwrap())),
            Self::File(path) => Box::new(OfFile(path.clone())),
        }
    }
}

/// Servers and a folder for one test.
pub(crate) struct TestServers {
    pub(crate) server: Server,
    postgres: Option<Postgres>,
    pub(crate) folder: Folder,
}

impl TestServers {
    pub(crate) fn new() -> Self {
        Self { server: Server::start(), postgres: None, folder: Folder::new() }
    }

    /// With a PostgreSQL server. `None` where PostgreSQL is not installed, unless it is required.
    pub(crate) fn with_postgres() -> Option<Self> {
        if Postgres::is_installed() || std::env::var_os("WHEELLOCK_POSTGRES").is_some() {
            return Some(Self { postgres: Some(Postgres::start()), ..Self::new() });
        }
        say("not run: PostgreSQL is not installed (WHEELLOCK_POSTGRES=required fails here)");
        None
    }

    /// The parameters of the PostgreSQL server.
    pub(crate) fn parameters(&self) -> String {
        self.postgres.as_ref().unwrap().parameters()
    }

    /// Every kind that these servers have.
    pub(crate) fn places(&self) -> Vec<Place> {
        match &self.postgres {
            Some(postgres) => {
                let parameters = postgres.parameters();
                vec![Place::Postgres(parameters.clone()), Place::PostgresColumn(parameters)]
            }
            None => vec![
                Place::Sqlite(self.folder.0.join("table.db")),
                Place::SqliteColumn(self.folder.0.join("column.db")),
                Place::Redis(self.server.url()),
                Place::File(self.folder.0.join("report.csv")),
            ],
        }
    }
}

/// A folder of its own, which ends with the value.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        let name = format!("wheellock-fence-{}-{:x}", std::process::id(), fastrand::u64(..));
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

#[expect(clippy::print_stderr, reason = "it is for who reads the output of the tests")]
fn say(what: &str) {
    eprintln!("{what}");
}

fn outcome<E: std::fmt::Debug>(result: Result<(), FenceError<E>>) -> Outcome {
    match result {
        Ok(()) => Ok(()),
        Err(FenceError::Stale(stale)) => Err(stale.to_string()),
        Err(other) => panic!("{other:?}"),
    }
}

struct OfPostgres {
    client: postgres::Client,
    has_column: bool,
}

impl OfPostgres {
    fn open(parameters: &str, has_column: bool) -> Self {
        let mut client = postgres::Client::connect(parameters, NoTls).unwrap();
        // One at a time: two sessions that make one table at once may be refused.
        let mut making = client.transaction().unwrap();
        making.execute("SELECT pg_advisory_xact_lock(1)", &[]).unwrap();
        making.batch_execute(sql::CREATE_TABLE).unwrap();
        for (table, more) in [("thing", String::new()), ("guarded", format!(", {}", sql::COLUMN))] {
            let columns = format!("id integer PRIMARY KEY, value text NOT NULL{more}");
            making
                .batch_execute(&format!(
                    "CREATE TABLE IF NOT EXISTS {table} ({columns});
                     INSERT INTO {table} (id, value) VALUES (1, '') ON CONFLICT DO NOTHING"
                ))
                .unwrap();
        }
        making.commit().unwrap();
        Self { client, has_column }
    }
}

impl Resource for OfPostgres {
    fn write(&mut self, token: u64, value: &str, after: &mut dyn FnMut(Step)) -> Outcome {
        let mut transaction = self.client.transaction().unwrap();
        // The transaction begins with its first statement.
        transaction.execute("SELECT 1", &[]).unwrap();
        after(Step::Begun);
        if self.has_column {
            let set_token = sql::set_column("$1");
            let update = format!("UPDATE guarded SET value = $2, {set_token} WHERE id = 1");
            let number = i64::try_from(token).unwrap();
            let written = transaction.execute(&update, &[&number, &value]);
            if let Err(error) = written {
                assert!(wheellock_fence::postgres::is_stale(&error), "{error:?}");
                return Err(Stale::new(NAME, token).to_string());
            }
        } else {
            let raised = wheellock_fence::postgres::raise(&mut transaction, NAME, token);
            outcome(raised)?;
            after(Step::Raised);
            transaction.execute("UPDATE thing SET value = $1", &[&value]).unwrap();
        }
        after(Step::Written);
        transaction.commit().unwrap();
        after(Step::Committed);
        Ok(())
    }

    fn write_without_a_fence(&mut self, value: &str) {
        let table = if self.has_column { "guarded" } else { "thing" };
        self.client.execute(&format!("UPDATE {table} SET value = $1"), &[&value]).unwrap();
    }

    fn read(&mut self) -> String {
        let table = if self.has_column { "guarded" } else { "thing" };
        self.client.query_one(&format!("SELECT value FROM {table}"), &[]).unwrap().get(0)
    }
}

struct OfSqlite {
    database: rusqlite::Connection,
    has_column: bool,
}

impl OfSqlite {
    fn open(path: &Path, has_column: bool) -> Self {
        let database = rusqlite::Connection::open(path).unwrap();
        database.busy_timeout(LIMIT).unwrap();
        sqlite::create_table(&database).unwrap();
        let more = if has_column { format!(", {}", sql::COLUMN) } else { String::new() };
        let columns = format!("id integer PRIMARY KEY, value text NOT NULL{more}");
        database
            .execute_batch(&format!(
                "CREATE TABLE IF NOT EXISTS thing ({columns});
                 INSERT OR IGNORE INTO thing (id, value) VALUES (1, '')"
            ))
            .unwrap();
        Self { database, has_column }
    }
}

impl Resource for OfSqlite {
    fn write(&mut self, token: u64, value: &str, after: &mut dyn FnMut(Step)) -> Outcome {
        let transaction =
            self.database.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
        after(Step::Begun);
        if self.has_column {
            let set_token = sql::set_column("?1");
            let update = format!("UPDATE thing SET value = ?2, {set_token} WHERE id = 1");
            let number = i64::try_from(token).unwrap();
            if let Err(error) = transaction.execute(&update, rusqlite::params![number, value]) {
                assert!(sqlite::is_stale(&error), "{error:?}");
                return Err(Stale::new(NAME, token).to_string());
            }
        } else {
            outcome(sqlite::raise(&transaction, NAME, token))?;
            after(Step::Raised);
            transaction.execute("UPDATE thing SET value = ?1", [value]).unwrap();
        }
        after(Step::Written);
        transaction.commit().unwrap();
        after(Step::Committed);
        Ok(())
    }

    fn write_without_a_fence(&mut self, value: &str) {
        self.database.execute("UPDATE thing SET value = ?1", [value]).unwrap();
    }

    fn read(&mut self) -> String {
        self.database.query_row("SELECT value FROM thing", [], |row| row.get(0)).unwrap()
    }
}

struct OfRedis(redis::Client);

impl Resource for OfRedis {
    fn write(&mut self, token: u64, value: &str, after: &mut dyn FnMut(Step)) -> Outcome {
        let mut connection = self.0.get_connection().unwrap();
        after(Step::Begun);
        let command = redis::cmd("SET").arg(NAME).arg(value).to_owned();
        outcome(wheellock_fence::redis::write::<()>(&mut connection, NAME, token, &command))?;
        after(Step::Committed);
        Ok(())
    }

    fn write_without_a_fence(&mut self, value: &str) {
        let mut connection = self.0.get_connection().unwrap();
        redis::cmd("SET").arg(NAME).arg(value).exec(&mut connection).unwrap();
    }

    fn read(&mut self) -> String {
        let mut connection = self.0.get_connection().unwrap();
        redis::cmd("GET")
            .arg(NAME)
            .query::<Option<String>>(&mut connection)
            .unwrap()
            .unwrap_or_default()
    }
}

struct OfFile(PathBuf);

impl Resource for OfFile {
    fn write(&mut self, token: u64, value: &str, after: &mut dyn FnMut(Step)) -> Outcome {
        after(Step::Begun);
        // The steps between are in the unit tests of `file`.
        outcome(file::replace(&self.0, token, value.as_bytes(), LIMIT))?;
        after(Step::Committed);
        Ok(())
    }

    fn write_without_a_fence(&mut self, value: &str) {
        fs::write(&self.0, value).unwrap();
    }

    fn read(&mut self) -> String {
        fs::read_to_string(&self.0).unwrap_or_default()
    }
}

/// How long a lease of a stopped process is.
pub(crate) const LEASE: Duration = Duration::from_secs(5);
