//! Files replaced as a whole, with the newest token in an adjacent folder.
//!
//! `report.csv` is a plain file, readable by any program. The file's fence is the folder
//! `report.csv.fence`:
//!
//! | in the folder | content |
//! |---|---|
//! | `lock` | an empty file, locked by the active writer with the operating system's file lock |
//! | `record` | the last write's number and token, and the newest token before the write |
//! | `content-N` | the new content, until write number N renames this file to `report.csv` |
//!
//! The rename commits the write: in a single step of the file system, the rename replaces the file
//! and removes the `content-N` named by `record`. If a writer is killed before the rename,
//! `content-N` still exists, and the next writer takes the token before that write as the newest.
//!
//! The fence only stops writers which use this module, on the same machine, with a local file
//! system that renames between two folders atomically, as all journaling file systems do. Network
//! file systems are not supported: their locks end while a machine is paused. The fence does not
//! stop direct writes to the file. Deleting the folder forgets which holders are stale. All writers
//! must be the same user, or share a group and an umask.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::{FenceError, Stale, checked};

/// Replaces the file at `path` with `content`, unless a newer token than `token` has written the
/// file. Readers see the old content or the new content, never a part. On `Ok`, content and token
/// are on the disk.
///
/// The call waits for a concurrent writer for at most `patience`. An existing file retains its
/// permissions, but the writer becomes the owner. At a symbolic link, the link's target is
/// replaced. Further hard links retain the old content, and have separate fences.
///
/// ```
/// use std::time::Duration;
/// use wheellock_fence::{FenceError, file};
///
/// # let folder = std::env::temp_dir().join(format!("wheellock-fence-file-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder)?;
/// let path = folder.join("report.csv");
/// file::replace(&path, 7, b"of the newer holder", Duration::from_secs(5))?;
/// let refused = file::replace(&path, 6, b"of the paused holder", Duration::from_secs(5));
/// let Err(FenceError::Stale(stale)) = refused else { panic!("the token was older") };
/// assert_eq!(stale.newest(), Some(7));
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok::<(), FenceError<std::io::Error>>(())
/// ```
///
/// # Errors
///
/// * [`FenceError::Stale`] - a newer holder has written. Nothing was changed. Permanent.
/// * [`FenceError::InvalidToken`] - nothing was done. Permanent.
/// * [`FenceError::Resource`] - the error of the file system. `TimedOut`: a concurrent writer has
///   not finished within `patience`; transient. `InvalidData`: the fence's record, named by the
///   message, is damaged; or the fence was replaced during the write. `InvalidInput`: `path` is no
///   regular file. After any error the file has the old content or the new content. A retry with
///   the same token is safe.
pub fn replace(
    path: impl AsRef<Path>,
    token: u64,
    content: &[u8],
    patience: Duration,
) -> Result<(), FenceError<io::Error>> {
    replace_in_steps(path.as_ref(), token, content, patience, &mut |_| {})
}

/// Steps of a write, after each of which a test kills the writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Locked,
    ContentWritten,
    RecordPrepared,
    RecordWritten,
    Renamed,
    Cleaned,
}

fn replace_in_steps(
    path: &Path,
    token: u64,
    content: &[u8],
    patience: Duration,
    after: &mut dyn FnMut(Step),
) -> Result<(), FenceError<io::Error>> {
    checked::<io::Error>(token)?;
    // 1. Writers take turns. Dropping `lock` or the end of the process unlocks the fence.
    let fence = Fence::of(path)?;
    let lock = fence.lock(patience)?;
    after(Step::Locked);
    // 2. The newest token. A write was not committed if its content file still exists.
    let last = fence.record()?;
    let newest = match &last {
        Some(last) if fence.content(last.write).try_exists()? => last.newest_before,
        Some(last) => last.token,
        None => 0,
    };
    if token < newest {
        let resource = path.display().to_string();
        return Err(FenceError::Stale(Stale::new(resource, token).with_newest(newest)));
    }
    // 3. The content, on the disk before the record, which names this content.
    let write = last.map_or(1, |last| last.write.wrapping_add(1));
    let new = fence.content(write);
    let permissions = fs::metadata(&fence.path).ok().map(|file| file.permissions());
    write_file(&new, content, permissions)?;
    sync_folder(&fence.folder)?;
    after(Step::ContentWritten);
    // 4. The record, on the disk before the rename.
    fence.check(&lock)?;
    fence.write_record(&Record { write, token, newest_before: newest }, after)?;
    after(Step::RecordWritten);
    // 5. The rename commits both.
    fs::rename(&new, &fence.path)?;
    sync_folder(fence.path.parent().unwrap_or(Path::new(".")))?;
    sync_folder(&fence.folder)?;
    after(Step::Renamed);
    // 6. Remove the remains of killed writers. After a failure, the next writer retries.
    fence.remove_contents().ok();
    after(Step::Cleaned);
    Ok(())
}

/// The fence of a file.
struct Fence {
    /// The file, with no symbolic link in its path.
    path: PathBuf,
    folder: PathBuf,
}

/// The last write whose content was complete.
struct Record {
    write: u64,
    token: u64,
    /// The newest token if `write` was not committed; zero for none.
    newest_before: u64,
}

impl Fence {
    /// Returns the fence of the file at `path`, and creates the fence's folder if missing.
    fn of(path: &Path) -> io::Result<Self> {
        let path = match fs::canonicalize(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                if fs::symlink_metadata(path).is_ok() {
                    return Err(irregular(path, "a symbolic link that leads nowhere"));
                }
                let name = path.file_name().ok_or(ErrorKind::InvalidFilename)?;
                let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
                fs::canonicalize(parent.unwrap_or(Path::new(".")))?.join(name)
            }
            Ok(path) if !path.is_file() => return Err(irregular(&path, "no regular file")),
            path => path?,
        };
        let mut name = path.file_name().ok_or(ErrorKind::InvalidFilename)?.to_owned();
        name.push(".fence");
        let folder = path.with_file_name(name);
        fs::create_dir_all(&folder)?;
        Ok(Self { path, folder })
    }

    fn content(&self, write: u64) -> PathBuf {
        self.folder.join(format!("content-{write}"))
    }

    /// Locks the fence. Waits for a concurrent writer for at most `patience`.
    fn lock(&self, patience: Duration) -> io::Result<File> {
        let path = self.folder.join("lock");
        // Locking the file needs no permission to write the file.
        let file = match File::open(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                OpenOptions::new().create(true).truncate(false).write(true).open(path)?
            }
            file => file?,
        };
        let mut left = patience;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::Error(error)) => return Err(error),
                Err(TryLockError::WouldBlock) if left.is_zero() => {
                    let message = format!(
                        "another writer of {} has not finished within {patience:?}",
                        self.path.display()
                    );
                    return Err(io::Error::new(ErrorKind::TimedOut, message));
                }
                Err(TryLockError::WouldBlock) => {
                    // The operating system has no lock with a time-out.
                    let pause = left.min(Duration::from_millis(5));
                    sleep(pause);
                    left -= pause;
                }
            }
        }
    }

    /// Fails if `lock` is no longer the fence's lock file: somebody has deleted the fence, so a
    /// second writer may be active.
    fn check(&self, lock: &File) -> io::Result<()> {
        let path = self.folder.join("lock");
        if is_same_file(&lock.metadata()?, &fs::metadata(&path)?) {
            return Ok(());
        }
        let message = format!("{} was replaced while it was locked", path.display());
        Err(io::Error::new(ErrorKind::InvalidData, message))
    }

    fn record(&self) -> io::Result<Option<Record>> {
        let path = self.folder.join("record");
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            text => text?,
        };
        let numbers: Result<Vec<u64>, _> = text.split_whitespace().map(str::parse).collect();
        if let Ok(&[write, token, newest_before]) = numbers.as_deref() {
            return Ok(Some(Record { write, token, newest_before }));
        }
        let message = format!("{} is no record of a fence", path.display());
        Err(io::Error::new(ErrorKind::InvalidData, message))
    }

    /// Removes the contents and the unfinished record of killed writers.
    fn remove_contents(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            let name = entry.file_name();
            if name == "record-new" || name.to_string_lossy().starts_with("content-") {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }

    fn write_record(&self, record: &Record, after: &mut dyn FnMut(Step)) -> io::Result<()> {
        let Record { write, token, newest_before } = record;
        let new = self.folder.join("record-new");
        write_file(&new, format!("{write} {token} {newest_before}\n").as_bytes(), None)?;
        after(Step::RecordPrepared);
        fs::rename(&new, self.folder.join("record"))?;
        sync_folder(&self.folder)
    }
}

/// Writes a new file to the disk, in place of a killed writer's remains. Links at `path` are
/// removed, not followed.
fn write_file(path: &Path, content: &[u8], permissions: Option<fs::Permissions>) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    if let Some(permissions) = permissions {
        file.set_permissions(permissions)?;
    }
    file.write_all(content)?;
    file.sync_all()
}

fn irregular(path: &Path, what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, format!("{} is {what}", path.display()))
}

#[cfg(unix)]
fn is_same_file(one: &fs::Metadata, other: &fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

/// Always true, because Windows deletes no open file.
#[cfg(not(unix))]
fn is_same_file(_: &fs::Metadata, _: &fs::Metadata) -> bool {
    true
}

/// Syncs the names in `folder` to the disk. Windows has no such call, and needs none.
fn sync_folder(folder: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
}

#[expect(clippy::disallowed_methods, reason = "it waits for another process")]
fn sleep(pause: Duration) {
    std::thread::sleep(pause);
}

#[cfg(test)]
mod tests {
    use std::env;
    use std::process::Command;

    use wheellock_fixture::TestProcess;

    use super::*;

    const PLACE: &str = "WHEELLOCK_TEST_PLACE";
    const STEP: &str = "WHEELLOCK_TEST_STEP";
    const LIMIT: Duration = Duration::from_secs(60);
    const STEPS: [Step; 6] = [
        Step::Locked,
        Step::ContentWritten,
        Step::RecordPrepared,
        Step::RecordWritten,
        Step::Renamed,
        Step::Cleaned,
    ];

    /// The process that is killed: this test program again, which runs this test alone.
    #[test]
    fn child_role() {
        let (Ok(place), Ok(step)) = (env::var(PLACE), env::var(STEP)) else { return };
        let (path, token) = place.split_once('|').unwrap();
        let content = format!("of {token}").repeat(10_000);
        let mut kill = |after: Step| {
            if format!("{after:?}") == step {
                std::process::abort();
            }
        };
        let token = token.parse().unwrap();
        let written =
            replace_in_steps(Path::new(path), token, content.as_bytes(), LIMIT, &mut kill);
        panic!("it was not killed after {step}: {written:?}");
    }

    /// A process that writes with this token and is killed after the step.
    fn kill_a_writer(path: &Path, token: u64, after: Step) {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", "file::tests::child_role", "--nocapture"]);
        command.env(PLACE, format!("{}|{token}", path.display())).env(STEP, format!("{after:?}"));
        let mut child = TestProcess::spawn(&mut command);
        let aborted = 128 + 6;
        assert_eq!(child.wait_for_exit(LIMIT), aborted, "{}", child.output());
    }

    fn content(token: u64) -> Vec<u8> {
        format!("of {token}").repeat(10_000).into_bytes()
    }

    #[test]
    fn a_writer_whose_fence_was_replaced_meanwhile_writes_nothing() {
        let folder = env::temp_dir().join(format!("wheellock-fence-gone-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let path = folder.join("report.csv");
        replace(&path, 5, b"5", LIMIT).unwrap();
        for at in [Step::Locked, Step::ContentWritten, Step::RecordWritten] {
            fs::remove_dir_all(folder.join("report.csv.fence")).unwrap();
            replace(&path, 5, b"5", LIMIT).unwrap();
            let mut meddle = |after: Step| {
                if after == at {
                    fs::remove_file(folder.join("report.csv.fence/lock")).unwrap();
                    replace(&path, 7, b"7", LIMIT).unwrap();
                }
            };
            replace_in_steps(&path, 6, b"6", LIMIT, &mut meddle).unwrap_err();
            assert_eq!(fs::read(&path).unwrap(), b"7", "{at:?}");
            let again = replace(&path, 6, b"6", LIMIT).unwrap_err();
            assert!(matches!(again, FenceError::Stale(_)), "{at:?}: {again}");
        }
        fs::remove_dir_all(&folder).unwrap();
    }

    /// Writers that are killed one after the other: each pair of steps, then a whole write.
    #[test]
    fn a_writer_that_is_killed_at_any_step_leaves_all_or_nothing() {
        let folder = env::temp_dir().join(format!("wheellock-fence-steps-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let path = folder.join("report.csv");
        let (mut newest, mut expected) = (None::<u64>, None);
        let mut token = 10;
        for first in STEPS {
            for second in STEPS {
                for step in [first, second] {
                    token += 10;
                    kill_a_writer(&path, token, step);
                    if matches!(step, Step::Renamed | Step::Cleaned) {
                        (newest, expected) = (Some(token), Some(content(token)));
                    }
                    let context = format!("{first:?} and {second:?}, {step:?}");
                    assert_eq!(fs::read(&path).ok(), expected, "{context}");
                    // Whoever comes with the token before the newest one is stale.
                    if let Some(newest) = newest {
                        let refused = replace(&path, newest - 1, b"stale", LIMIT).unwrap_err();
                        let FenceError::Stale(stale) = refused else { panic!("{context}") };
                        assert_eq!(stale.newest(), Some(newest), "{context}");
                        assert_eq!(fs::read(&path).ok(), expected, "{context}");
                    }
                }
                // One token more than the newest, which is less than what was not committed.
                let next = newest.map_or(5, |newest| newest + 1);
                replace(&path, next, &content(next), LIMIT).unwrap();
                (newest, expected) = (Some(next), Some(content(next)));
                assert_eq!(fs::read(&path).ok(), expected);
            }
        }
        let left = fs::read_dir(folder.join("report.csv.fence")).unwrap().count();
        assert_eq!(left, 2, "the lock and the record");
        fs::remove_dir_all(&folder).unwrap();
    }
}
