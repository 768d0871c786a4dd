/** A part of a batch, in a task: from its first row to the report for the driver. */
package exactlyonce.write;
