//! Files that are either the old one or the new one, whole, whenever the process dies (decision D10).
//!
//! It does not know what is written.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// Writes `path` through a temporary file beside it: `body` writes, then flush to disk, then rename.
///
/// **Errors** those of the file system; the temporary file is gone then and `path` is as it was.
pub fn write(path: &Path, body: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> io::Result<()> {
    let name =
        path.file_name().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the path has no file name"))?;
    let mut temporary = std::ffi::OsString::from(".");
    temporary.push(name);
    temporary.push(format!(".{}.partial", std::process::id()));
    let temporary = path.with_file_name(temporary);
    let written = (|| {
        let mut writer = BufWriter::new(File::create(&temporary)?);
        body(&mut writer)?;
        writer.flush()?;
        writer.get_ref().sync_all()?;
        drop(writer);
        std::fs::rename(&temporary, path)
    })();
    if written.is_err() {
        // The first error is the one to report; a file that was never made cannot be removed.
        let _ = std::fs::remove_file(&temporary);
        return written;
    }
    // The new name itself reaches the disk only with its directory.
    #[cfg(unix)]
    {
        let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(parent)?.sync_all()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_leaves_the_old_file_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        write(&path, |w| w.write_all(b"old")).unwrap();
        let failed = write(&path, |w| {
            w.write_all(&[0; 100_000])?;
            Err(io::Error::other("no space"))
        });
        assert_eq!(failed.unwrap_err().to_string(), "no space");
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        write(&path, |w| w.write_all(b"new")).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        assert!(write(&dir.path().join("absent/file"), |_| Ok(())).is_err());
    }
}
