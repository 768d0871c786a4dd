/** The bytes of keys and values by a schema, and the digest of rows. */
package exactlyonce.encode;
