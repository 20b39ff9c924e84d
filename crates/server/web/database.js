// One object store of IndexedDB: what is changed in one go is one transaction.

export class Store {
  /** The store `name` of `database`, which is made where it is absent. Values are kept under keys that are given with them. */
  constructor(database, name) {
    Object.assign(this, { database, name, opened: null });
  }

  /**
   * Changes the store by `act(store, keep)`; resolves with what was last given to `keep`, once all is written.
   * @throws when the browser keeps nothing, or has no room
   */
  async change(act) {
    const transaction = (await this.open()).transaction(this.name, "readwrite");
    let kept;
    return new Promise((resolve, reject) => {
      transaction.oncomplete = () => resolve(kept);
      transaction.onabort = () => reject(transaction.error);
      act(transaction.objectStore(this.name), (value) => (kept = value));
    });
  }

  /** The result of the request that `act(store)` makes. */
  async ask(act) {
    const store = (await this.open()).transaction(this.name).objectStore(this.name);
    return new Promise((resolve, reject) => {
      const request = act(store);
      request.onsuccess = () => resolve(request.result);
      request.onerror = () => reject(request.error);
    });
  }

  open() {
    this.opened ??= new Promise((resolve, reject) => {
      const request = indexedDB.open(this.database, 1);
      request.onupgradeneeded = () => request.result.createObjectStore(this.name);
      request.onsuccess = () => {
        // The browser closes it when the page's data is deleted; the next use opens it again.
        request.result.onclose = () => (this.opened = null);
        resolve(request.result);
      };
      request.onerror = () => reject(request.error);
    });
    return this.opened;
  }
}
