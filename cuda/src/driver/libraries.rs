//! Where NVIDIA's libraries are looked for.
//!
//! Nothing of CUDA is linked. The folder that `RAGEN_CUDA_LIBRARIES` names comes before all others. Then come what the system's loader knows,
//! the toolkit's folders and those of Python's packages: the first version that is no newer than the driver, or where there is none such
//! the first of any version, for a newer one may still do.
//!
//! cudarc loads the driver and cuBLASLt by a list of names on first use, and panics when none is there. So they are loaded here before, by
//! their full path where the loader does not know them; from then on it knows them by their names. NVRTC is not left to cudarc: of two
//! versions that the loader knows it would take the newer one, whatever was loaded here.

use crate::CudaError;
use std::cmp::Reverse;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A library of NVIDIA's.
pub struct Library {
    /// What people call it.
    name: &'static str,
    /// What stands between `lib` and `.so` in its file's name.
    stem: &'static str,
    /// The versions that this program can use, as its file's name ends in them; the first is the best.
    versions: &'static [u32],
    /// A library that it loads by name while it works.
    companion: Option<&'static str>,
    /// Whether cudarc would find it now, if it is cudarc that calls it.
    present: Option<unsafe fn() -> bool>,
}

/// The driver.
pub const DRIVER: Library = Library {
    name: "NVIDIA's driver",
    stem: "cuda",
    versions: &[1],
    companion: None,
    present: Some(cudarc::driver::sys::is_culib_present),
};

/// The compiler of kernels.
pub const NVRTC: Library = Library {
    name: "NVRTC, which compiles the kernels,",
    stem: "nvrtc",
    versions: &[13, 12],
    companion: Some("nvrtc-builtins"),
    present: None,
};

/// Matrix products.
pub const CUBLASLT: Library = Library {
    name: "cuBLASLt",
    stem: "cublasLt",
    versions: &[13, 12],
    companion: None,
    present: Some(cudarc::cublaslt::sys::is_culib_present),
};

/// The variable that names a folder to be looked in before all others.
const NAMED_FOLDER: &str = "RAGEN_CUDA_LIBRARIES";

/// Where the driver lies on systems whose loader does not say so: WSL, Colab, NixOS.
const DRIVER_FOLDERS: &[&str] = &["/usr/lib/wsl/lib", "/usr/lib64-nvidia", "/run/opengl-driver/lib"];

/// Where a library was found.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    /// By the system's loader, under this name.
    Known(String),
    /// In a file.
    At(PathBuf),
}

impl Library {
    /// Opens it, for as long as the program runs, no newer than `newest` where there is a choice.
    ///
    /// **Errors** [`CudaError::Unavailable`]: what is missing, where it was looked for, how to get it.
    pub fn load(&self, newest: u32) -> Result<&'static libloading::Library, CudaError> {
        let named = std::env::var_os(NAMED_FOLDER).map(PathBuf::from);
        if let Some((_, path)) = named.and_then(|folder| self.best_in(&folder, newest)) {
            return self.open(&Place::At(path));
        }
        let is_driver = self.stem == DRIVER.stem;
        let set = |name: &str| std::env::var_os(name);
        // Looked at one after the other: asking python3 takes a while.
        let places: [&dyn Fn() -> Vec<PathBuf>; 3] = [
            &|| toolkit_folders(&set, Path::new("/usr/local")),
            &|| site_packages(&set).iter().flat_map(|site| wheel_folders(site)).collect(),
            &|| sites_of_python().iter().flat_map(|site| wheel_folders(site)).collect(),
        ];
        let driver: [&dyn Fn() -> Vec<PathBuf>; 1] = [&|| DRIVER_FOLDERS.iter().map(PathBuf::from).collect()];
        let folders = if is_driver { &driver[..] } else { &places[..] };
        // SAFETY: it opens and closes NVIDIA's own libraries, which may be initialised at any time.
        let known = |name: &str| unsafe { libloading::Library::new(name) }.is_ok();
        if let Some(place) = self.choose(newest, &known, folders.iter().flat_map(|folders| folders())) {
            self.open(&place)
        } else if is_driver {
            Err(self.missing(&DRIVER_FOLDERS.join(", "), "install the driver of the GPU (nvidia.com/drivers)"))
        } else {
            let major = newest.min(self.versions[0]);
            let packages = if major < 13 {
                "nvidia-cuda-nvrtc-cu12 nvidia-cublas-cu12"
            } else {
                "nvidia-cuda-nvrtc nvidia-cublas"
            };
            let places = "CUDA_HOME, CUDA_PATH, /usr/local/cuda* or the packages of VIRTUAL_ENV, CONDA_PREFIX, ~/.local and python3";
            Err(self.missing(places, &format!("pip install {packages} brings it")))
        }
    }

    /// Opens the one in `folder`.
    ///
    /// **Errors** [`CudaError::Unavailable`] when there is none.
    pub fn load_in(&self, folder: &Path) -> Result<&'static libloading::Library, CudaError> {
        match self.best_in(folder, u32::MAX) {
            Some((_, path)) => self.open(&Place::At(path)),
            None => Err(self.missing(&folder.display().to_string(), "name another folder")),
        }
    }

    /// The first place with a version that is no newer than `newest`: the system's loader, then the folders; or else the first place.
    fn choose(
        &self,
        newest: u32,
        known: &dyn Fn(&str) -> bool,
        folders: impl Iterator<Item = PathBuf>,
    ) -> Option<Place> {
        let name = |version: &u32| format!("lib{}.so.{version}", self.stem);
        let (fit, newer): (Vec<u32>, Vec<u32>) = self.versions.iter().partition(|version| **version <= newest);
        if let Some(name) = fit.iter().map(name).find(|name| known(name)) {
            return Some(Place::Known(name));
        }
        let mut first = None;
        for folder in folders {
            match self.best_in(&folder, newest) {
                Some((version, path)) if version <= newest => return Some(Place::At(path)),
                Some((_, path)) => first = first.or(Some(path)),
                None => {}
            }
        }
        // The name without a version does not tell which it is.
        let names = std::iter::once(format!("lib{}.so", self.stem)).chain(newer.iter().rev().map(name));
        let by_name = { names }.find(|name| known(name)).map(Place::Known);
        by_name.or(first.map(Place::At))
    }

    fn open(&self, place: &Place) -> Result<&'static libloading::Library, CudaError> {
        let open = |path: &OsStr| {
            // SAFETY: NVIDIA's own library; initialising it has no precondition.
            let library = unsafe { libloading::Library::new(path) };
            // It stays loaded for as long as the program runs, and known to the loader by its name.
            library.map(|library| &*Box::leak(Box::new(library)))
        };
        let path = match place {
            Place::Known(name) => Path::new(name),
            Place::At(path) => path,
        };
        let folder = path.parent().filter(|_| matches!(place, Place::At(_)));
        for (_, path) in self.companion.iter().zip(folder).flat_map(|(stem, folder)| versions_in(folder, stem)) {
            // Where it does not load, its library says so when it needs it.
            let _ = open(path.as_os_str());
        }
        let unavailable = |reason: String| Err(CudaError::Unavailable { reason });
        match open(path.as_os_str()) {
            Err(error) => unavailable(format!("{} does not load: {error}", path.display())),
            // SAFETY: as above.
            Ok(_) if self.present.is_some_and(|present| !unsafe { present() }) => {
                unavailable(format!("{} is loaded and yet the loader does not know it by name", path.display()))
            }
            Ok(library) => Ok(library),
        }
    }

    /// The best version in a folder.
    fn best_in(&self, folder: &Path, newest: u32) -> Option<(u32, PathBuf)> {
        let mut there = versions_in(folder, self.stem);
        there.retain(|(version, _)| self.versions.contains(version));
        // What is newer than the driver is better than nothing: it may still do.
        there.sort_by_key(|(version, _)| (*version <= newest, Reverse(version.abs_diff(newest))));
        there.pop()
    }

    fn missing(&self, places: &str, remedy: &str) -> CudaError {
        let file = format!("lib{}.so", self.stem);
        let reason = format!(
            "{} was not found: the system's loader knows no {file}, and none is in {places}; {remedy}",
            self.name
        );
        CudaError::Unavailable { reason }
    }
}

/// The files `lib<stem>.so.<number>` of a folder with their numbers; what follows a further dot is not looked at.
fn versions_in(folder: &Path, stem: &str) -> Vec<(u32, PathBuf)> {
    let prefix = format!("lib{stem}.so.");
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let version = |path: &Path| path.file_name()?.to_str()?.strip_prefix(&prefix)?.split('.').next()?.parse().ok();
    entries.filter_map(|entry| Some((version(&entry.path())?, entry.path()))).collect()
}

/// The toolkit's folders: those that the environment names, then what is installed below `/usr/local`, newest first.
fn toolkit_folders(set: &dyn Fn(&str) -> Option<OsString>, local: &Path) -> Vec<PathBuf> {
    let mut roots: Vec<PathBuf> = ["CUDA_HOME", "CUDA_PATH"]
        .iter()
        .filter_map(|name| set(name))
        .filter(|v| !v.is_empty())
        .map(PathBuf::from)
        .collect();
    roots.push(local.join("cuda"));
    let numbers = |path: &PathBuf| {
        let name = path.file_name()?.to_str()?.strip_prefix("cuda-")?.to_string();
        Some(name.split('.').map(|part| part.parse().unwrap_or(0)).collect::<Vec<u32>>())
    };
    let mut installed: Vec<PathBuf> =
        fs::read_dir(local).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    installed.retain(|path| numbers(path).is_some());
    installed.sort_by_key(|path| Reverse(numbers(path)));
    roots.extend(installed);
    // CONDA_PREFIX has the toolkit's libraries in its own lib.
    roots.extend(set("CONDA_PREFIX").filter(|v| !v.is_empty()).map(PathBuf::from));
    roots.iter().flat_map(|root| [root.join("lib64"), root.join("lib")]).collect()
}

/// The folders of Python's packages that the environment tells of.
fn site_packages(set: &dyn Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let prefix = |name: &str| set(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let roots = [prefix("VIRTUAL_ENV"), prefix("CONDA_PREFIX"), prefix("HOME").map(|home| home.join(".local"))];
    let pythons = |root: PathBuf| {
        let entries = fs::read_dir(root.join("lib")).into_iter().flatten().flatten();
        let python = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with("python3");
        let mut sites: Vec<PathBuf> = entries.filter(python).map(|entry| entry.path().join("site-packages")).collect();
        sites.sort();
        sites
    };
    roots.into_iter().flatten().flat_map(pythons).collect()
}

/// The folders of packages of the `python3` on PATH, by its own word: only it knows what a version manager makes of it.
fn sites_of_python() -> Vec<PathBuf> {
    let answer = Command::new("python3").args(["-c", r#"import sys; print("\n".join(sys.path))"#]).output();
    let text = answer.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    text.lines().filter(|line| line.ends_with("-packages")).map(PathBuf::from).collect()
}

/// Where NVIDIA's packages have their libraries: `nvidia/cuda_nvrtc/lib`, `nvidia/cublas/lib`, and for CUDA 13 `nvidia/cu13/lib`.
fn wheel_folders(site: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(site.join("nvidia")).into_iter().flatten().flatten();
    let mut folders: Vec<PathBuf> = entries.map(|entry| entry.path().join("lib")).collect();
    // cu13 before those of CUDA 12, whose packages have names without a number.
    folders.sort_by_key(|path| (!path.parent().is_some_and(|p| p.ends_with("cu13")), path.clone()));
    folders
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with empty files at these paths.
    fn tree(files: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for file in files {
            let path = folder.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        folder
    }

    /// The file that is chosen among folders where the loader knows nothing.
    fn find(library: &Library, folders: impl IntoIterator<Item = PathBuf>, newest: u32) -> Option<PathBuf> {
        library.choose(newest, &|_| false, folders.into_iter()).map(|place| match place {
            Place::At(path) => path,
            known => panic!("{known:?}"),
        })
    }

    #[test]
    fn toolkits_are_found_where_they_are_installed() {
        let tree = tree(&[
            "local/cuda-12.4/lib64/libnvrtc.so.12",
            "local/cuda-12.10/lib64/libnvrtc.so.12",
            "local/cuda-12.10/lib64/libnvrtc.so.12.10.3",
            "home/lib64/libcublasLt.so.13",
            "local/share/lib64/libnvrtc.so.13",
        ]);
        let (root, local) = (tree.path(), tree.path().join("local"));
        let none = |_: &str| None;
        assert_eq!(
            find(&NVRTC, toolkit_folders(&none, &local), 13).unwrap().parent().unwrap(),
            local.join("cuda-12.10/lib64"),
            "12.10 is newer than 12.4, and share is no toolkit"
        );
        assert_eq!(find(&CUBLASLT, toolkit_folders(&none, &local), 13), None);
        let home = |name: &str| (name == "CUDA_HOME").then(|| root.join("home").into_os_string());
        assert_eq!(
            find(&CUBLASLT, toolkit_folders(&home, &local), 13).unwrap(),
            root.join("home/lib64/libcublasLt.so.13")
        );
    }

    #[test]
    fn wheels_are_found_in_packages() {
        let tree = tree(&[
            "venv/lib/python3.11/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
            "venv/lib/python3.11/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.alt.so.12",
            "venv/lib/python3.11/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc-builtins.so.12.8",
            "venv/lib/python3.11/site-packages/nvidia/cublas/lib/libcublasLt.so.12",
            "venv/lib/python3.11/site-packages/nvidia/cublas/lib/libcublas.so.12",
            "home/.local/lib/python3.12/site-packages/nvidia/cu13/lib/libnvrtc.so.13",
            "home/.local/lib/python3.12/site-packages/nvidia/cu13/lib/libnvrtc.so.11.2",
        ]);
        let root = tree.path();
        let set = |name: &str| match name {
            "VIRTUAL_ENV" => Some(root.join("venv").into_os_string()),
            "HOME" => Some(root.join("home").into_os_string()),
            _ => None,
        };
        let find = |library: &Library, set: &dyn Fn(&str) -> Option<OsString>, newest| {
            let sites = site_packages(set);
            let path = super::tests::find(library, sites.iter().flat_map(|site| wheel_folders(site)), newest)?;
            Some(path.file_name()?.to_str()?.to_string())
        };
        assert_eq!(find(&NVRTC, &set, 13).unwrap(), "libnvrtc.so.12", "the environment that is active comes first");
        assert_eq!(find(&CUBLASLT, &set, 13).unwrap(), "libcublasLt.so.12");
        let home = |name: &str| if name == "HOME" { set(name) } else { None };
        assert_eq!(find(&NVRTC, &home, 13).unwrap(), "libnvrtc.so.13");
        assert_eq!(find(&CUBLASLT, &home, 13), None);
        assert_eq!(find(&NVRTC, &|_| None, 13), None);
    }

    #[test]
    fn the_version_follows_the_driver() {
        let tree = tree(&["libnvrtc.so.11", "libnvrtc.so.12", "libnvrtc.so.13", "libnvrtc.so.x", "libnvrtc.so"]);
        let find = |newest| find(&NVRTC, [tree.path().to_path_buf()], newest).unwrap();
        assert_eq!(find(13), tree.path().join("libnvrtc.so.13"));
        assert_eq!(find(12), tree.path().join("libnvrtc.so.12"));
        assert_eq!(
            find(11),
            tree.path().join("libnvrtc.so.12"),
            "11 cannot be used; something newer is better than nothing"
        );
    }

    #[test]
    fn what_is_newer_than_the_driver_is_taken_only_where_nothing_fits() {
        let tree = tree(&["a/libnvrtc.so.13", "b/libnvrtc.so.12", "c/libnvrtc.so.12", "d/libnvrtc.so.13"]);
        let choose = |newest, known: &[&str], folders: &[&str]| {
            let folders = folders.iter().map(|folder| tree.path().join(folder));
            match NVRTC.choose(newest, &|name| known.contains(&name), folders)? {
                Place::Known(name) => Some(name),
                Place::At(path) => Some(path.strip_prefix(tree.path()).unwrap().display().to_string()),
            }
        };
        let (both, newer) = (["libnvrtc.so.13", "libnvrtc.so.12"], ["libnvrtc.so", "libnvrtc.so.13"]);
        assert_eq!(choose(13, &both, &["b"]).unwrap(), "libnvrtc.so.13");
        assert_eq!(choose(12, &both, &["b"]).unwrap(), "libnvrtc.so.12", "the loader knows one that fits");
        assert_eq!(choose(12, &newer, &["a", "b", "c"]).unwrap(), "b/libnvrtc.so.12", "a folder has one that fits");
        assert_eq!(choose(12, &newer, &["a", "d"]).unwrap(), "libnvrtc.so", "nothing fits for certain");
        assert_eq!(choose(12, &["libnvrtc.so.13"], &["a", "d"]).unwrap(), "libnvrtc.so.13");
        assert_eq!(choose(12, &[], &["d", "a"]).unwrap(), "d/libnvrtc.so.13");
        assert_eq!(choose(12, &[], &["e"]), None);
    }

    #[test]
    fn absence_says_what_where_and_how() {
        let folder = tempfile::tempdir().unwrap();
        let text = NVRTC.load_in(folder.path()).unwrap_err().to_string();
        let place = folder.path().to_str().unwrap();
        assert!(text.contains("NVRTC") && text.contains("libnvrtc.so") && text.contains(place), "{text}");
        let broken = tree(&["libnvrtc.so.13"]);
        let text = NVRTC.load_in(broken.path()).unwrap_err().to_string();
        assert!(text.contains("libnvrtc.so.13 does not load"), "{text}");
    }
}
